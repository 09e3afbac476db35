//! A clock for promises of the program, not of the machine: it stands still while what it measures is ready
//! to run and has no core.
//!
//! On a machine with cores to spare it goes like any other; where twenty others want the core, it goes as
//! long as what it measures runs, or waits for an event. What the kernel does not report counts as time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Measures from its creation on.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Instant,
    /// Folders whose entries are threads, or one of a thread, with what had been waited there before.
    before: Vec<(PathBuf, Duration)>,
}

impl Stopwatch {
    /// A stopwatch of the calling thread.
    pub fn of_thread() -> Self {
        let own = std::fs::read_link("/proc/thread-self").unwrap_or_default();
        Self::of([Path::new("/proc").join(own)])
    }

    /// A stopwatch of all threads of some processes. Where several wait at a time, each counts.
    pub fn of_processes(processes: impl IntoIterator<Item = u32>) -> Self {
        let threads = |process| PathBuf::from(format!("/proc/{process}/task"));
        Self::of(processes.into_iter().map(threads))
    }

    fn of(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let before = folders.into_iter().map(|folder| {
            let waited = waited(&folder);
            (folder, waited)
        });
        Self {
            before: before.collect(),
            begun: Instant::now(),
        }
    }

    /// Returns the time since its creation, but for that without a core.
    pub fn elapsed(&self) -> Duration {
        let elapsed = self.begun.elapsed();
        let since = |(folder, before): &(PathBuf, Duration)| waited(folder).saturating_sub(*before);
        elapsed.saturating_sub(self.before.iter().map(since).sum())
    }
}

/// How long a thread, or all threads in a folder, have been ready to run without a core; nothing where they
/// have ended.
fn waited(folder: &Path) -> Duration {
    let of = |thread: &Path| -> Option<u64> {
        let times = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        times.split_whitespace().nth(1)?.parse().ok()
    };
    let nanos = of(folder).unwrap_or_else(|| {
        let threads = std::fs::read_dir(folder).into_iter().flatten().flatten();
        threads.filter_map(|thread| of(&thread.path())).sum()
    });
    Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_while_its_thread_sleeps() {
        let sleep = |_| {
            let watch = Stopwatch::of_thread();
            std::thread::sleep(Duration::from_millis(20));
            watch.elapsed()
        };
        // The clock and the count are read one behind the other, and another thread may run in between: not
        // each time.
        let longest = (0..20).map(sleep).max().unwrap();
        assert!(longest >= Duration::from_millis(19), "{longest:?}");
    }

    #[test]
    fn it_is_of_a_process_as_well() {
        let process = Path::new("/proc").join(std::process::id().to_string());
        assert!(waited(&process.join("task")) > Duration::ZERO || !process.join("schedstat").exists());
        assert_eq!(waited(Path::new("/proc/0/task")), Duration::ZERO, "there is none");
    }

    #[test]
    fn it_stands_still_while_others_have_the_cores() {
        if !Path::new("/proc/thread-self/schedstat").exists() {
            return crate::skipped(
                "stopwatch::it_stands_still_while_others_have_the_cores",
                "this kernel does not count how long a thread waits for a core",
            );
        }
        let cores = std::thread::available_parallelism().unwrap().get();
        let begun = Instant::now();
        let each: Duration = std::thread::scope(|scope| {
            let spin = || {
                let watch = Stopwatch::of_thread();
                while begun.elapsed() < Duration::from_millis(300) {
                    std::hint::spin_loop();
                }
                watch.elapsed()
            };
            let threads: Vec<_> = (0..4 * cores).map(|_| scope.spawn(spin)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        let most = begun.elapsed().mul_f64(1.5 * cores as f64);
        assert!(each < most, "all of them: {each:?}");
    }
}
