//! Cores: which ones may be used, and binding the calling thread to one.

use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::env::list_of;
use crate::error::BenchError;

/// The cores that this process may use, in ascending order.
pub fn allowed() -> Vec<usize> {
    let mut cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .into_iter()
        .map(|core| core.id)
        .collect();
    cores.sort_unstable();
    cores
}

/// Returns the allowed cores, with one hardware thread of each core before the second ones: those taken from
/// the front share no core as long as there are enough of them.
pub fn apart() -> Vec<usize> {
    apart_under(Path::new("/"), allowed())
}

fn apart_under(root: &Path, mut cores: Vec<usize>) -> Vec<usize> {
    let all = cores.clone();
    let turn = |core: &usize| {
        let file = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let list = std::fs::read_to_string(root.join(file)).unwrap_or_default();
        let threads = list_of(list.trim());
        let before = threads
            .iter()
            .filter(|other| *other < core && all.contains(other));
        (before.count(), *core)
    };
    cores.sort_by_cached_key(turn);
    cores
}

/// Binds the calling thread, and the threads that it starts, to one core.
///
/// # Errors
/// When the core does not exist or is not allowed to this process, or the system refuses.
pub fn bind(core: usize) -> Result<(), BenchError> {
    check(core)?;
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|errno| BenchError::Bind {
        core,
        source: errno.into(),
    })
}

/// Returns why this process can bind nothing, as in a container whose profile refuses sched_setaffinity;
/// `None` where it can.
pub fn refusal() -> Option<io::Error> {
    let set = sched_getaffinity(None).ok()?;
    sched_setaffinity(None, &set).err().map(io::Error::from)
}

/// Whether a thread of this process may be bound to a core.
///
/// # Errors
/// When the core does not exist or is not allowed to this process.
pub fn check(core: usize) -> Result<(), BenchError> {
    if allowed().contains(&core) {
        return Ok(());
    }
    Err(refused(
        core,
        "it does not exist or is not allowed to this process",
    ))
}

fn refused(core: usize, reason: &'static str) -> BenchError {
    BenchError::Core {
        core,
        reason,
        allowed: list(&allowed()),
    }
}

/// The core that this thread is bound to, when it is exactly one.
pub fn bound() -> Option<usize> {
    match allowed()[..] {
        [core] => Some(core),
        _ => None,
    }
}

/// Formats a list of cores as text.
pub fn list(cores: &[usize]) -> String {
    let names: Vec<String> = cores.iter().map(usize::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_threads_of_one_core_are_taken_last() {
        let root = tempfile::tempdir().unwrap();
        let threads = |core: usize, list: &str| {
            let folder = format!("sys/devices/system/cpu/cpu{core}/topology");
            let folder = root.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("thread_siblings_list"), format!("{list}\n")).unwrap();
        };
        for (core, list) in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3"), (4, "4,9")] {
            threads(core, list);
        }
        let of = |cores: &[usize]| apart_under(root.path(), cores.to_vec());
        assert_eq!(of(&[0, 1, 2, 3, 4, 5]), [0, 2, 4, 5, 1, 3]);
        // The other thread is not allowed here: this one is alone.
        assert_eq!(of(&[1, 2, 3]), [1, 2, 3]);
        let (own, mut all) = (allowed(), apart());
        assert_eq!(own.first(), all.first());
        all.sort_unstable();
        assert_eq!(own, all);
    }

    #[test]
    fn a_thread_can_be_bound_to_an_allowed_core_only() {
        let cores = allowed();
        let last = *cores.last().unwrap();
        std::thread::spawn(move || {
            bind(last).unwrap();
            assert_eq!(bound(), Some(last));
        })
        .join()
        .unwrap();
        let error = bind(100_000).unwrap_err().to_string();
        assert!(
            error.contains("100000") && error.contains(&list(&cores)),
            "{error}"
        );
    }
}
