//! Whether this process is a rank of a job that was started by `doorbell run` or another launcher.

use std::time::Duration;

use doorbell::Config;
use doorbell::oob::launch::{Found, Kind};
use doorbell_fabric::error::Exit;

use super::layer::LayerJob;
use crate::console;
use crate::error::ToolError;

/// A rank that ends because it lost another one is not the cause: that one's end is seen to first.
const CAUSE: Duration = Duration::from_millis(500);

/// This process in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its rank in the job.
    pub(super) rank: u32,
    /// Its number among the ranks of this host, and how many those are, where a foreign launcher provides
    /// them.
    pub(super) local: Option<(u32, u32)>,
    /// The launcher that started it.
    pub(super) kind: Kind,
}

/// The job that this process belongs to. One process that a foreign launcher started alone, as in a shell
/// under Slurm, belongs to none: it may start ranks of its own.
pub(super) fn member() -> Result<Option<Member>, ToolError> {
    let found = doorbell::launcher(&Config::from_environment()?)?;
    Ok(member_of(&found))
}

fn member_of(found: &Found) -> Option<Member> {
    let alone = match found.kind {
        Kind::Doorbell => false,
        Kind::Singleton => true,
        Kind::Pmix | Kind::Pmi2 | Kind::Pmi1 | Kind::Environment => found.size == Some(1),
    };
    (!alone).then_some(Member {
        rank: found.rank,
        local: found.local_rank.zip(found.local_size),
        kind: found.kind,
    })
}

/// Ends the job because of an error of this rank.
pub(super) fn abort(job: LayerJob, error: &ToolError) -> ! {
    let text = format!("doorbell: rank {}: {error}", job.rank());
    console::say(&text);
    if error.exit() == Exit::PeerLost {
        std::thread::sleep(CAUSE);
    }
    job.abort(error.exit().number(), &text)
}

#[cfg(test)]
mod tests {
    use doorbell::oob::launch::{Wanted, detect};

    use super::*;

    #[test]
    fn one_process_alone_is_no_job() {
        let of = |size: &'static str| {
            let variables = move |name: &str| match name {
                "PMI_FD" => Some("9".to_owned()),
                "PMI_RANK" | "MPI_LOCALRANKID" => Some("0".to_owned()),
                "PMI_SIZE" | "MPI_LOCALNRANKS" => Some(size.to_owned()),
                _ => None,
            };
            member_of(&detect(&Wanted::default(), &variables).unwrap())
        };
        assert_eq!(of("1"), None);
        let two = of("2").unwrap();
        assert_eq!((two.rank, two.local, two.kind), (0, Some((0, 2)), Kind::Pmi1));
        let ours = Wanted {
            ours: Some((0, Some(1))),
            ..Wanted::default()
        };
        let ours = member_of(&detect(&ours, &|_| None).unwrap()).unwrap();
        assert_eq!(ours.kind, Kind::Doorbell);
        assert_eq!(member_of(&detect(&Wanted::default(), &|_| None).unwrap()), None);
    }
}
