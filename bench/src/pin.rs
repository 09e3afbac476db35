//! Cores: which ones may be used, and binding the calling thread to one.

use std::io;

use doorbell_fabric::cores::{self, CoreSet, Topology};

use crate::error::BenchError;

/// The cores that this process may use, in ascending order.
pub fn allowed() -> Vec<usize> {
    cores::allowed().to_vec()
}

/// Returns the allowed cores, with one hardware thread of each core before the second ones: those taken from
/// the front share no core as long as there are enough of them.
pub fn apart() -> Vec<usize> {
    Topology::read().order(None)
}

/// Binds the calling thread, and the threads that it starts, to one core.
///
/// # Errors
/// When the core does not exist or is not allowed to this process, or the system refuses.
pub fn bind(core: usize) -> Result<(), BenchError> {
    check(core)?;
    bind_set(&CoreSet::from_iter([core]), core)
}

/// Binds the calling thread, and the threads that it starts, to these cores.
///
/// # Errors
/// Those of [`bind`], for the first core that is refused.
pub fn bind_all(cores: &[usize]) -> Result<(), BenchError> {
    cores.iter().try_for_each(|core| check(*core))?;
    match cores.first() {
        Some(first) => bind_set(&cores.iter().copied().collect(), *first),
        None => Ok(()),
    }
}

fn bind_set(set: &CoreSet, core: usize) -> Result<(), BenchError> {
    cores::bind(set).map_err(|source| BenchError::Bind { core, source })
}

/// Returns why this process can bind nothing, as in a container whose profile refuses sched_setaffinity;
/// `None` where it can.
pub fn refusal() -> Option<io::Error> {
    cores::refusal()
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
    fn all_allowed_cores_are_ordered() {
        let (own, mut all) = (allowed(), apart());
        assert_eq!(own.len(), all.len());
        all.sort_unstable();
        assert_eq!(own, all);
    }

    #[test]
    fn a_thread_can_be_bound_to_an_allowed_core_only() {
        let cores = allowed();
        let last = *cores.last().unwrap();
        std::thread::spawn(move || {
            bind_all(&allowed()).unwrap();
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
