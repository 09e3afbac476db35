//! `doorbell why`: which rails lead to a peer, and for every other one the reason that it does not.
//!
//! ```text
//!   a rank     its job's counter files, which running ranks of this user have   what they found out    rank
//!   a host     discovery, then the routing table                               what would be chosen   host
//!              with --probe: the side that serves there                        the probe of two sizes
//! ```

pub(crate) mod args;
mod host;
mod rank;
mod table;

pub(crate) use rank::{few, gids};

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::process::ExitCode;

use doorbell::Unchosen;
use doorbell::lobby::Address;
use doorbell_fabric::error::Exit;
use doorbell_fabric::shown::shown;
use serde::Serialize;

use crate::console;
use crate::error::ToolError;
use crate::why::args::WhyArgs;

/// The JSON of `doorbell why`.
#[derive(Serialize)]
struct Why {
    schema: &'static str,
    version: &'static str,
    peer: String,
    /// The addresses of a host.
    addresses: Vec<String>,
    /// One for each rank that has rails to the peer; one without a rank for a host.
    from: Vec<From>,
    /// What to do when no rail leads there, if there is anything.
    remedy: Option<String>,
    /// Why the messages of the probe were not answered, if they were not.
    unanswered: Option<String>,
}

/// The rails of one process.
#[derive(Serialize)]
struct From {
    rank: Option<u32>,
    pid: Option<u32>,
    /// Why its progress thread shares its core, if it does: everything takes longer then.
    shares_core: Option<String>,
    rails: Vec<Row>,
}

/// One candidate rail.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    rail: String,
    verdict: Verdict,
    /// The rail at the peer.
    pair: Option<String>,
    /// Half a round trip, in nanoseconds.
    latency_ns: Option<u64>,
    /// What the latency is of.
    latency_of: Option<LatencyOf>,
    reason: String,
    /// Over RDMA ports: the pair of GIDs that is used, and why each pair that comes before it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gids: Vec<String>,
}

/// What a latency is of, surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum LatencyOf {
    /// Messages that were answered at once.
    Messages,
    /// Acknowledgements: with what they waited for, and of frames of any length.
    Acknowledgements,
    /// Nothing yet: what the rail promises.
    Estimate,
}

impl LatencyOf {
    /// Returns its mark in the table.
    fn mark(self) -> char {
        match self {
            Self::Messages => 'm',
            Self::Acknowledgements => 'a',
            Self::Estimate => 'e',
        }
    }
}

/// How a rail stands towards the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// It carries messages, or would.
    Chosen,
    /// It carried messages, or should, and nothing passes now.
    Down,
    /// Nothing is wrong with it: others are named, or it is used only when named.
    NotNamed,
    /// Nothing is wrong with it: the peer has no rail left for it.
    LeftOver,
    /// It cannot carry messages to this peer.
    Unusable,
    /// This program does not know the state that the rank shows.
    Unknown,
}

impl Verdict {
    /// Returns its word in the table.
    fn word(self) -> &'static str {
        match self {
            Self::Chosen => "chosen",
            Self::Down => "down",
            Self::NotNamed => "not named",
            Self::LeftOver => "left over",
            Self::Unusable => "unusable",
            Self::Unknown => "unknown",
        }
    }
}

impl std::convert::From<Unchosen> for Verdict {
    fn from(unchosen: Unchosen) -> Self {
        match unchosen {
            Unchosen::NotNamed => Self::NotNamed,
            Unchosen::LeftOver => Self::LeftOver,
            Unchosen::Unusable => Self::Unusable,
        }
    }
}

/// A peer that counter files name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// A rank of a job.
    Rank(u32),
    /// A process of no job, by the name in its address.
    Member(u64),
}

impl Peer {
    /// Reads a rank, the 16 hexadecimal digits of a name, or an address with such a name, as libfabric's
    /// clients print it; `None` for a host.
    ///
    /// # Errors
    /// An address of doorbell or of a socket in libfabric's form that has no name or port in it.
    fn of(text: &str) -> Result<Option<Self>, ToolError> {
        let odd = || {
            ToolError::Usage(format!(
                "`{}` is no address of a process: pass it as it was printed, doorbell://HOST/NAME or \
                 fi_sockaddr_in://HOST:PORT, or its 16 hexadecimal digits NAME alone",
                shown(text)
            ))
        };
        // fi_av_straddr puts the name of the format before it.
        let ours = text.strip_prefix("fi_doorbell://").unwrap_or(text);
        if let Some(address) = ours.strip_prefix("doorbell://") {
            let name = address.split('/').nth(1).and_then(Self::by_name);
            return name.map(Some).ok_or_else(odd);
        }
        let sockets = ["fi_sockaddr_in://", "fi_sockaddr_in6://"];
        if let Some(address) = sockets.iter().find_map(|prefix| text.strip_prefix(prefix)) {
            let socket = address
                .split('/')
                .next()
                .and_then(|part| part.parse::<SocketAddr>().ok());
            let port = socket.and_then(|socket| NonZeroU16::new(socket.port()));
            // The process that has taken the port.
            let address = port.map(|port| Address::of_port(port, 0).to_string());
            return address.map_or_else(|| Err(odd()), |address| Self::of(&address));
        }
        Ok(text.parse().ok().map(Self::Rank).or_else(|| Self::by_name(text)))
    }

    /// Reads the 16 hexadecimal digits of a name.
    fn by_name(text: &str) -> Option<Self> {
        let is_name = text.len() == 16 && text.bytes().all(|letter| letter.is_ascii_hexdigit());
        let name = is_name.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        name.map(Self::Member)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "{rank}"),
            Self::Member(name) => write!(f, "{name:016x}"),
        }
    }
}

/// Runs `doorbell why`.
pub(crate) fn why(args: &WhyArgs) -> Result<ExitCode, ToolError> {
    let why = match Peer::of(&args.peer)? {
        Some(peer) => {
            refuse(
                args,
                "the number of a rank or the name of a member",
                "the address of a host",
                &[
                    ("--probe", args.probe),
                    ("--rail", !args.rails.is_empty()),
                    ("--key-file", args.key_file.is_some()),
                ],
            )?;
            rank::why(args, peer)?
        }
        None => {
            refuse(
                args,
                "a host",
                "the number of a rank",
                &[("--job", args.job.is_some())],
            )?;
            if args.key_file.is_some() && !args.probe {
                let text = "--key-file goes with --probe: without it, there is no connection";
                return Err(ToolError::Usage(text.to_owned()));
            }
            host::why(args)?
        }
    };
    let chosen = |one: &From| one.rails.iter().any(|row| row.verdict == Verdict::Chosen);
    let verdict = if why.from.iter().all(chosen) && why.unanswered.is_none() {
        Exit::Done
    } else {
        Exit::Verdict
    };
    let text = if args.json {
        let text = serde_json::to_string_pretty(&why).map_err(|error| ToolError::System {
            what: "write the verdicts as JSON",
            source: error.into(),
        })?;
        text + "\n"
    } else {
        table::table(&why, console::known_width().unwrap_or(usize::MAX))
    };
    console::print(&text)?;
    Ok(verdict.into())
}

/// Refuses options that have no meaning for such a peer.
fn refuse(args: &WhyArgs, is: &str, not: &str, given: &[(&str, bool)]) -> Result<(), ToolError> {
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((option, _)) => Err(ToolError::Usage(format!(
            "{option} goes with {not}, and `{}` is {is}",
            args.peer
        ))),
    }
}

impl Why {
    fn new(args: &WhyArgs, addresses: Vec<String>, from: Vec<From>, remedy: Option<String>) -> Self {
        Self {
            schema: "doorbell.why/2",
            version: env!("CARGO_PKG_VERSION"),
            peer: args.peer.clone(),
            addresses,
            from,
            remedy,
            unanswered: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_provider_is_the_process_that_has_it() {
        let member = Some(Peer::Member(0x9a8b_7c6d_5e4f_3a2b));
        for text in [
            "9a8b7c6d5e4f3a2b",
            "doorbell://5f0c1a2b3c4d5e6f/9a8b7c6d5e4f3a2b",
            "doorbell://5f0c1a2b3c4d5e6f/9a8b7c6d5e4f3a2b/0",
            "doorbell://5f0c1a2b3c4d5e6f/9a8b7c6d5e4f3a2b/127",
            "fi_doorbell://doorbell://5f0c1a2b3c4d5e6f/9a8b7c6d5e4f3a2b/0",
        ] {
            assert_eq!(Peer::of(text).unwrap(), member, "{text}");
        }
        let port = Some(Peer::Member(0x00db_0000_0000_240c));
        for text in [
            "fi_sockaddr_in://127.0.0.1:9228",
            "fi_sockaddr_in://127.0.0.1:9228/3",
            "fi_sockaddr_in6://[::1]:9228",
        ] {
            assert_eq!(Peer::of(text).unwrap(), port, "{text}");
        }
        assert_eq!(Peer::of("17").unwrap(), Some(Peer::Rank(17)));
        assert_eq!(Peer::of("node7").unwrap(), None);
        for text in [
            "doorbell://",
            "doorbell://5f0c1a2b3c4d5e6f",
            "doorbell://5f0c1a2b3c4d5e6f/x\n",
            "fi_sockaddr_in://127.0.0.1",
            "fi_sockaddr_in://127.0.0.1:0",
        ] {
            let said = Peer::of(text).unwrap_err().to_string();
            assert!(
                said.contains("pass it as it was printed, doorbell://HOST/NAME") && !said.contains('\n'),
                "{said}"
            );
        }
    }
}
