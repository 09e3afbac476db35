//! The initial distribution of credits and buffers, computed alike by every process, so that nothing has to
//! be exchanged (gasnet.md section 6).

use super::config::{BYTES_PER_CREDIT, CreditConfig, CreditConfigError};
use super::table::defaults;

const PER_NODE: &str = "GASNET_PORTAL_CRED_PER_NODE";
const BANKED: &str = "GASNET_PORTAL_BANKED_CREDITS";
const SPACE: &str = "GASNET_PORTAL_AMRECV_SPACE";

/// Events that the queue of a job of one process holds.
const ALONE: u32 = 10;
/// Events beyond the buffers', where nothing limits the senders.
const WITHOUT_CREDITS: u32 = 500;

/// The start-up distribution of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Initial credits of every other process.
    pub per_node: u16,
    /// How many of the others, by rank and without this one, start with one more: the remainder of the
    /// division, where credits do not migrate.
    pub one_more: u32,
    /// Credits that are not lent yet.
    pub banked: u32,
    /// All of them: lent and banked.
    pub total: u32,
    /// Receive buffers that are attached, spares among them.
    pub buffers: u32,
    /// Events that the queue of requests must hold: one for each credit.
    pub events: u32,
    /// Bytes of one buffer.
    pub buffer_bytes: u64,
}

impl Shares {
    /// The distribution of these terms.
    ///
    /// # Errors
    /// [`CreditConfigError`]: settings that contradict each other, or leave less than a full message needs.
    pub fn new(terms: &CreditConfig) -> Result<Self, CreditConfigError> {
        terms.checked()?;
        if terms.nodes == 1 {
            return Ok(Self::uncounted(terms, 1, ALONE));
        }
        let wanted = if terms.dynamic && terms.flow_control {
            dynamic(terms)?
        } else {
            fixed(terms)?
        };
        let adjusted = Self::adjusted(terms, wanted)?;
        if !terms.flow_control {
            let events = WITHOUT_CREDITS.saturating_add(adjusted.total);
            return Ok(Self::uncounted(terms, adjusted.buffers, events));
        }
        Ok(adjusted)
    }

    /// Credits that `lender` initially lends to `borrower`.
    #[inline]
    pub const fn of(&self, lender: u32, borrower: u32) -> u16 {
        let place = borrower - (borrower > lender) as u32;
        self.per_node + (place < self.one_more) as u16
    }

    /// Bytes of all receive buffers.
    pub const fn receive_bytes(&self) -> u64 {
        self.buffers as u64 * self.buffer_bytes
    }

    /// Bytes of the request queue, with `event` bytes per event.
    pub const fn event_bytes(&self, event: usize) -> u64 {
        self.events as u64 * event as u64
    }

    const fn uncounted(terms: &CreditConfig, buffers: u32, events: u32) -> Self {
        Self {
            per_node: 0,
            one_more: 0,
            banked: 0,
            total: 0,
            buffers,
            events,
            buffer_bytes: buffer_bytes(terms),
        }
    }

    /// Only whole buffers are attached, so the number is rounded up; the surplus goes to the bank, or, where
    /// credits do not migrate, to all peers.
    fn adjusted(terms: &CreditConfig, (per_node, banked): (u16, u32)) -> Result<Self, CreditConfigError> {
        let others = u64::from(terms.nodes - 1);
        let wanted = u64::from(banked) + others * u64::from(per_node);
        let per_buffer = u64::from(terms.chunks_per_buffer - 1) * u64::from(terms.chunk.least());
        let buffers = wanted.div_ceil(per_buffer);
        let total = buffers * per_buffer;
        let fits = u32::try_from(total).ok().zip(u32::try_from(buffers).ok());
        let (total, buffers) = fits.ok_or_else(|| too_many(terms, (per_node, banked), total))?;
        let mut per_node = per_node;
        let mut one_more = 0;
        if !terms.dynamic || !terms.flow_control {
            let each = u64::from(total) / others;
            per_node = u16::try_from(each).unwrap_or(u16::MAX);
            if each < u64::from(u16::MAX) {
                one_more = (u64::from(total) % others) as u32;
            }
        }
        // At most what was wanted, which is at most the total.
        let lent = (others * u64::from(per_node)) as u32 + one_more;
        Ok(Self {
            per_node,
            one_more,
            banked: total - lent,
            total,
            buffers: buffers.saturating_add(terms.spares),
            events: total,
            buffer_bytes: buffer_bytes(terms),
        })
    }
}

const fn buffer_bytes(terms: &CreditConfig) -> u64 {
    terms.chunks_per_buffer as u64 * terms.chunk.bytes() as u64
}

/// The requested credits where credits migrate: for each peer, and in the bank.
fn dynamic(terms: &CreditConfig) -> Result<(u16, u32), CreditConfigError> {
    let (per_node, banked) = defaults(terms.nodes, terms.chunk);
    let others = u64::from(terms.nodes - 1);
    Ok(match (terms.per_node, terms.banked, terms.space) {
        (None, None, None) => (per_node, banked),
        (Some(per_node), None, None) => (given(terms, per_node)?, banked),
        (None, Some(banked), None) => (per_node, banked),
        (Some(per_node), Some(banked), _) => (given(terms, per_node)?, banked),
        (None, None, Some(space)) => {
            let each = space / BYTES_PER_CREDIT as u64 / others;
            let per_node = enough(terms, each, SPACE, space)?;
            // Credits beyond what one peer's counters can hold go to the bank.
            let rest = (each - u64::from(per_node)) * others;
            let banked = u32::try_from(rest).map_err(|_| too_many(terms, (per_node, 0), rest))?;
            (per_node, banked)
        }
        (Some(per_node), None, Some(space)) => {
            let per_node = given(terms, per_node)?;
            let needed = others * u64::from(per_node) * BYTES_PER_CREDIT as u64;
            if needed > space {
                return Err(CreditConfigError::SpaceTooSmall {
                    per_node,
                    others: terms.nodes - 1,
                    needed,
                    space,
                });
            }
            (per_node, 0)
        }
        (None, Some(banked), Some(space)) => {
            let left = (space / BYTES_PER_CREDIT as u64).checked_sub(banked.into());
            let left = left.ok_or(CreditConfigError::BankTooLarge {
                banked,
                needed: u64::from(banked) * BYTES_PER_CREDIT as u64,
                space,
            })?;
            (enough(terms, left / others, SPACE, space)?, banked)
        }
    })
}

/// The requested credits where they do not migrate: no bank, and too little space is raised to what is
/// needed.
fn fixed(terms: &CreditConfig) -> Result<(u16, u32), CreditConfigError> {
    let per_node = match (terms.per_node, terms.space) {
        (Some(per_node), _) => given(terms, per_node)?,
        (None, Some(space)) => {
            let each = space / BYTES_PER_CREDIT as u64 / u64::from(terms.nodes - 1);
            let each = each.max(terms.chunk.least().into());
            u16::try_from(each).unwrap_or(u16::MAX)
        }
        (None, None) => defaults(terms.nodes, terms.chunk).0,
    };
    Ok((per_node, 0))
}

/// `CRED_PER_NODE` as it was set.
fn given(terms: &CreditConfig, per_node: u16) -> Result<u16, CreditConfigError> {
    enough(terms, per_node.into(), PER_NODE, per_node.into())
}

/// Checks what setting `name` of `value` gives each peer: at most 16 bits, at least what a full message
/// needs.
fn enough(
    terms: &CreditConfig,
    given: u64,
    name: &'static str,
    value: u64,
) -> Result<u16, CreditConfigError> {
    let (others, least) = (terms.nodes - 1, terms.chunk.least());
    if given >= u64::from(least) {
        return Ok(u16::try_from(given).unwrap_or(u16::MAX));
    }
    let all = u64::from(others) * u64::from(least) + u64::from(terms.banked.unwrap_or(0));
    let enough = match name {
        SPACE => all * BYTES_PER_CREDIT as u64,
        _ => least.into(),
    };
    Err(CreditConfigError::BelowLeast {
        name,
        value,
        enough,
        others,
        given,
        least,
    })
}

/// Finds the setting that causes too many credits.
#[cold]
fn too_many(terms: &CreditConfig, (per_node, banked): (u16, u32), credits: u64) -> CreditConfigError {
    let lent = u64::from(terms.nodes - 1) * u64::from(per_node);
    let (name, value) = match (terms.per_node, terms.banked, terms.space) {
        (None, None, Some(space)) => (SPACE, space),
        (_, Some(_), _) if u64::from(banked) >= lent => (BANKED, banked.into()),
        (None, Some(_), Some(space)) => (SPACE, space),
        _ => (PER_NODE, per_node.into()),
    };
    CreditConfigError::TooMany { name, value, credits }
}
