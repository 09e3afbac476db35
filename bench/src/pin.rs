//! Cores: which ones may be used, and binding the calling thread to one.

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

/// Binds the calling thread, and the threads that it starts, to one core.
///
/// # Errors
/// When the core does not exist or is not allowed to this process.
pub fn bind(core: usize) -> Result<(), BenchError> {
    check(core)?;
    if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        return Ok(());
    }
    Err(refused(core, "the system refused"))
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

/// Cores as text.
pub fn list(cores: &[usize]) -> String {
    let names: Vec<String> = cores.iter().map(usize::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

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
