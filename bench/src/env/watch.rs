//! What disturbed a rank during the measurement: the difference of two looks at `/proc`.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A look at the kernel's counters of this thread and of its core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    core: Option<usize>,
    steal: u64,
    switches: u64,
}

/// What happened between two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noise {
    /// Ticks (a hundredth of a second each) that the hypervisor gave to somebody else.
    pub steal_ticks: u64,
    /// How often this thread had to give its core to another one.
    pub involuntary_switches: u64,
}

impl Watch {
    /// Looks now; `core` is the one that this thread is bound to, `None` means all of them together.
    pub fn look(core: Option<usize>) -> Self {
        Self::under(Path::new("/"), core)
    }

    fn under(root: &Path, core: Option<usize>) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        Self {
            core,
            steal: steal(&text("proc/stat"), core),
            switches: switches(&text("proc/thread-self/status")),
        }
    }

    /// What happened since.
    pub fn since(&self) -> Noise {
        self.until(&Self::look(self.core))
    }

    fn until(&self, later: &Self) -> Noise {
        Noise {
            steal_ticks: later.steal.saturating_sub(self.steal),
            involuntary_switches: later.switches.saturating_sub(self.switches),
        }
    }
}

/// The eighth number of the core's line (proc(5), /proc/stat).
fn steal(stat: &str, core: Option<usize>) -> u64 {
    let name = core.map_or_else(|| "cpu".to_owned(), |core| format!("cpu{core}"));
    stat.lines()
        .map(str::split_whitespace)
        .find_map(|mut words| {
            (words.next()? == name)
                .then(|| words.nth(7)?.parse().ok())
                .flatten()
        })
        .unwrap_or(0)
}

fn switches(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| {
            line.strip_prefix("nonvoluntary_ctxt_switches:")?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str =
        "cpu  57972 0 7278 275523 1318 0 55 83 0 0\ncpu0 1 2 3 4 5 6 7 39 0 0\ncpu10 1 2 3 4 5 6 7 44 0 0\n";

    #[test]
    fn the_right_column_of_the_right_core_is_read() {
        assert_eq!(
            (steal(STAT, None), steal(STAT, Some(0)), steal(STAT, Some(10))),
            (83, 39, 44)
        );
        assert_eq!(
            (steal(STAT, Some(1)), steal("cpu 1 2", None), steal("", None)),
            (0, 0, 0)
        );
        assert_eq!(switches("Name:\tx\nnonvoluntary_ctxt_switches:\t12\n"), 12);
        assert_eq!(switches("nonvoluntary_ctxt_switches:\tmany"), 0);
    }

    #[test]
    fn a_thread_that_is_pushed_aside_notices() {
        let root = tempfile::tempdir().unwrap();
        let thread = root.path().join("proc/thread-self");
        fs::create_dir_all(&thread).unwrap();
        let look = |switches: u32, steal: u32| {
            fs::write(
                thread.join("status"),
                format!("nonvoluntary_ctxt_switches:\t{switches}\n"),
            )
            .unwrap();
            fs::write(
                root.path().join("proc/stat"),
                format!("cpu 0 0 0 0 0 0 0 {steal}\n"),
            )
            .unwrap();
            Watch::under(root.path(), None)
        };
        let (before, after) = (look(3, 10), look(8, 12));
        let noise = before.until(&after);
        assert_eq!((noise.involuntary_switches, noise.steal_ticks), (5, 2));
        assert_eq!(after.until(&before), Noise::default());
    }
}
