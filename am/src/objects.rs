//! The queues, descriptors and entries of a conduit, made at the start (gasnet.md section 1; the table of how
//! each object of the original maps onto Portals 4 is in the crate's documentation).

use doorbell_fabric::memory::{Region, RegionSlice};
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    CtHandle, Entry, EntryHandle, EntryOptions, EqHandle, List, Md, MdHandle, MdOptions, Memory, Ni, NiError,
    NiLimits, PtOptions,
};

use crate::config::{AM_INDEX, Config, OTHER_ENTRIES, OTHER_MDS, RAR_INDEX, SYS_INDEX};
use crate::credit::Shares;
use crate::error::AmError;
use crate::match_bits::{IGNORE, Id};
use crate::poll::ARRIVALS_MOST;
use crate::reqrb::ReqRb;

/// User pointer of the entry that takes the data of Long requests: no receive buffer has this number.
pub(crate) const RARAM_POINTER: u64 = u64::MAX;

/// The event queues of a conduit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queues {
    /// Handling an event frees resources and needs none.
    pub(crate) safe: EqHandle,
    /// Handling an event runs a request handler, which replies.
    pub(crate) am: EqHandle,
    /// Events of system messages.
    pub(crate) sys: EqHandle,
}

/// The descriptor that a message is sent from: descriptors of one memory differ in their events.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources {
    /// The interface has a copy when the call returns: no event.
    pub(crate) volatile: MdHandle,
    /// SEND reports when the bytes may change.
    pub(crate) send: MdHandle,
    /// Only ACK or REPLY ends it.
    pub(crate) quiet: MdHandle,
}

/// Everything that was made at the start.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) queues: Queues,
    pub(crate) segment: Sources,
    pub(crate) reqsb: Sources,
    pub(crate) rplsb: Sources,
    pub(crate) boot: MdHandle,
    /// A descriptor of no bytes and no events: system messages leave from it.
    pub(crate) nothing: MdHandle,
    /// Counts what fell into the catch basin.
    pub(crate) basin: CtHandle,
    /// The segment, as puts and gets reach it.
    pub(crate) open: EntryHandle,
    /// Largest message in bytes that a volatile descriptor copies.
    pub(crate) volatile: u64,
    pub(crate) most: u64,
}

/// The memory of a conduit.
#[derive(Debug)]
pub(crate) struct Memories {
    pub(crate) segment: RegionSlice,
    pub(crate) reqsb: RegionSlice,
    pub(crate) rplsb: RegionSlice,
    pub(crate) boot: RegionSlice,
}

/// Takes the memory: one region for each buffer.
pub(crate) fn memories(config: &Config, segment: RegionSlice) -> Result<Memories, AmError> {
    let chunk = config.settings.chunk.bytes();
    Ok(Memories {
        segment,
        reqsb: region(
            "the send buffer of requests",
            config.settings.request_chunks as usize * chunk,
        )?,
        rplsb: region(
            "the send buffer of replies",
            config.settings.reply_chunks as usize * chunk,
        )?,
        boot: region(
            "the table of segments",
            config.ranks.count() as usize * crate::boot::ENTRY_BYTES,
        )?,
    })
}

/// Takes the memory of the receive buffers.
pub(crate) fn receive_buffers(config: &Config, shares: &Shares) -> Result<ReqRb, AmError> {
    let bytes = usize::try_from(shares.buffer_bytes).unwrap_or(usize::MAX);
    let memory = (0..shares.buffers).map(|_| region("the receive buffers", bytes));
    let chunk = config.settings.chunk.bytes() as u32;
    Ok(ReqRb::new(memory.collect::<Result<_, _>>()?, chunk))
}

fn region(what: &'static str, bytes: usize) -> Result<RegionSlice, AmError> {
    let region = Region::new(bytes.max(1)).map_err(|source| AmError::Memory { what, source })?;
    Ok(region.whole())
}

/// Whether the interface is large enough.
pub(crate) fn suffices(config: &Config, shares: &Shares, limits: &NiLimits) -> Result<(), AmError> {
    let chunk = config.settings.chunk.bytes() as u64;
    let entries = u64::from(shares.buffers) + u64::from(OTHER_ENTRIES);
    let buffers = "GASNET_PORTAL_AMRECV_SPACE";
    for (what, have, need, lower) in [
        ("max_entries", limits.max_entries.into(), entries, buffers),
        (
            "max_list_size",
            limits.max_list_size.into(),
            u64::from(shares.buffers) + 1,
            buffers,
        ),
        (
            "max_mds",
            limits.max_mds.into(),
            u64::from(config.settings.temporaries) + u64::from(OTHER_MDS),
            "GASNET_PORTAL_NUM_TMPMD",
        ),
        (
            "max_pt_index",
            limits.max_pt_index.into(),
            SYS_INDEX.into(),
            "nothing",
        ),
        ("max_eqs", limits.max_eqs.into(), 3, "nothing"),
        ("max_cts", limits.max_cts.into(), 1, "nothing"),
        (
            "max_msg_size",
            limits.max_msg_size,
            chunk,
            "GASNET_PORTAL_CHUNK_SIZE",
        ),
    ] {
        if have < need {
            return Err(AmError::Limits {
                what,
                have,
                need,
                lower,
            });
        }
    }
    Ok(())
}

/// Sizes of the queues. The SAFE queue is the original's: two events of each message, one of each reply
/// chunk, three of each request chunk, three quarters of that above 10,000. The AM queue has one event of
/// each credit, and one AUTO_UNLINK of each buffer, which Portals 4 puts there. The SYS queue is the
/// original's and the steps of two barriers and an exit, which is what ranks that keep to the protocol need;
/// and twice what one poll may bring, so that one that does not takes no place from them.
pub(crate) fn queue_sizes(config: &Config, shares: &Shares) -> [usize; 3] {
    let settings = &config.settings;
    let safe = 2 * settings.message_limit as usize
        + settings.reply_chunks as usize
        + 3 * settings.request_chunks as usize;
    let safe = if safe > 10_000 { safe / 4 * 3 } else { safe };
    let am = shares.events as usize + shares.buffers as usize;
    let nodes = config.ranks.count() as usize;
    let steps = usize::BITS - nodes.leading_zeros();
    let sys = 2 * nodes + 10 + 3 * steps as usize + 2 * ARRIVALS_MOST;
    [safe, am, sys]
}

impl Objects {
    /// Makes everything, and attaches all receive buffers.
    pub(crate) fn new<N: Ni>(
        ni: &mut N,
        config: &Config,
        shares: &Shares,
        memories: &Memories,
        buffers: &mut ReqRb,
    ) -> Result<Self, AmError> {
        suffices(config, shares, ni.limits())?;
        let [safe, am, sys] = queue_sizes(config, shares);
        let queues = Queues {
            safe: ni.eq_alloc(safe).map_err(step("the SAFE queue"))?,
            am: ni.eq_alloc(am).map_err(step("the AM queue"))?,
            sys: ni.eq_alloc(sys).map_err(step("the SYS queue"))?,
        };
        for (index, eq) in [
            (RAR_INDEX, queues.safe),
            (AM_INDEX, queues.am),
            (SYS_INDEX, queues.sys),
        ] {
            ni.pt_alloc(PtOptions::NONE, Some(eq), Some(index))
                .map_err(step("a portal table entry"))?;
        }
        let basin = ni.ct_alloc().map_err(step("the count of the catch basin"))?;
        let open = attach_targets(ni, memories, basin)?;
        for buffer in 0..buffers.len() {
            attach_buffer(ni, buffers, buffer).map_err(step("a receive buffer"))?;
        }
        let safe = Some(queues.safe);
        let md = |memory, options, eq| Md {
            memory,
            options,
            eq,
            ct: None,
        };
        let mut bind = |md| ni.md_bind(md).map_err(step("a memory descriptor"));
        let mut sources = |memory: &RegionSlice| -> Result<Sources, AmError> {
            let memory = || Memory::One(Landing::Region(memory.clone()));
            let volatile = MdOptions::VOLATILE | MdOptions::EVENT_SEND_DISABLE;
            Ok(Sources {
                volatile: bind(md(memory(), volatile, safe))?,
                send: bind(md(memory(), MdOptions::NONE, safe))?,
                quiet: bind(md(memory(), MdOptions::EVENT_SEND_DISABLE, safe))?,
            })
        };
        let segment = sources(&memories.segment)?;
        let reqsb = sources(&memories.reqsb)?;
        let rplsb = sources(&memories.rplsb)?;
        let boot = Memory::One(Landing::Region(memories.boot.clone()));
        let boot = bind(md(boot, MdOptions::EVENT_SEND_DISABLE, None))?;
        let nothing = bind(md(Memory::Empty, MdOptions::EVENT_SEND_DISABLE, None))?;
        let limits = ni.limits();
        Ok(Self {
            queues,
            segment,
            reqsb,
            rplsb,
            boot,
            nothing,
            basin,
            open,
            volatile: limits.max_volatile_size,
            most: limits.max_msg_size,
        })
    }
}

/// Makes an error of the interface name the step that failed.
pub(crate) fn step(step: &'static str) -> impl Fn(NiError) -> AmError {
    move |source| AmError::Interface { step, source }
}

/// The entries that stay as they are.
fn attach_targets<N: Ni>(ni: &mut N, memories: &Memories, basin: CtHandle) -> Result<EntryHandle, AmError> {
    let of = |memory: &RegionSlice| Memory::One(Landing::Region(memory.clone()));
    let base = EntryOptions::EVENT_LINK_DISABLE | EntryOptions::EVENT_UNLINK_DISABLE;
    let put = base | EntryOptions::OP_PUT;
    let silent = EntryOptions::EVENT_COMM_DISABLE;
    let bits = |id: Id| id as u64;
    let mut attach = |index, memory, options, id, list, pointer| {
        let entry = Entry::open(memory, options).matching(bits(id), IGNORE);
        ni.append(index, entry, list, pointer)
            .map_err(step("an entry of the portal table"))
    };
    let (first, last) = (List::Priority, List::Overflow);
    // Replies are the most frequent of those on this list.
    attach(RAR_INDEX, of(&memories.reqsb), put, Id::ReqSb, first, 0)?;
    let open = put | EntryOptions::OP_GET | silent;
    let open = attach(RAR_INDEX, of(&memories.segment), open, Id::Rar, first, 0)?;
    attach(RAR_INDEX, of(&memories.segment), put, Id::RarSrc, first, 0)?;
    attach(
        AM_INDEX,
        of(&memories.segment),
        put,
        Id::RarAm,
        first,
        RARAM_POINTER,
    )?;
    attach(SYS_INDEX, Memory::Empty, put, Id::Sys, first, 0)?;
    attach(SYS_INDEX, of(&memories.boot), put, Id::Boot, first, 0)?;
    let counted = EntryOptions::EVENT_CT_COMM | EntryOptions::UNEXPECTED_HDR_DISABLE;
    let entry = Entry::open(Memory::Empty, put | silent | counted).matching(bits(Id::ReqRb), IGNORE);
    ni.append(AM_INDEX, entry.counted(basin), last, RARAM_POINTER)
        .map_err(step("the catch basin"))?;
    Ok(open)
}

/// Attaches a receive buffer, at the end of the list.
pub(crate) fn attach_buffer<N: Ni>(
    ni: &mut N,
    buffers: &mut ReqRb,
    buffer: usize,
) -> Result<EntryHandle, NiError> {
    let Some(memory) = buffers.memory(buffer) else {
        return Err(NiError::ArgInvalid("the number of a receive buffer"));
    };
    let options = EntryOptions::OP_PUT | EntryOptions::MANAGE_LOCAL | EntryOptions::EVENT_LINK_DISABLE;
    let memory = Memory::One(Landing::Region(memory.clone()));
    let mut entry = Entry::open(memory, options).matching(Id::ReqRb as u64, IGNORE);
    entry.min_free = buffers.chunk();
    let handle = ni.append(AM_INDEX, entry, List::Priority, buffer as u64)?;
    buffers.attached(buffer, handle);
    Ok(handle)
}
