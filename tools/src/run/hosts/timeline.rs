//! The timeline of a start-up: when each step happened, host by host.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::place::Host;

/// A step of the start-up on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The remote shell was started from here.
    Shell,
    /// The daemon reported that it is ready.
    Here,
    /// It reported that its ranks are started.
    Started,
    /// It reported the first barrier of its ranks.
    Met,
}

const MARKS: usize = 4;

#[derive(Debug)]
pub(super) struct Timeline {
    begun: Instant,
    ranks: u32,
    hosts: Vec<(String, u32, [Option<Duration>; MARKS])>,
    here: Option<Duration>,
    ended: Option<Duration>,
}

impl Timeline {
    pub(super) fn new(begun: Instant, hosts: &[Host], ranks: u32) -> Self {
        let hosts = hosts
            .iter()
            .map(|host| (host.name.clone(), host.ranks, [None; MARKS]));
        Self {
            begun,
            ranks,
            hosts: hosts.collect(),
            here: None,
            ended: None,
        }
    }

    /// Something happened on the host of this daemon; what happens again is not noted.
    pub(super) fn mark(&mut self, rank: u32, mark: Mark) {
        let now = self.begun.elapsed();
        let host = (rank as usize)
            .checked_sub(1)
            .and_then(|at| self.hosts.get_mut(at));
        if let Some((_, _, marks)) = host {
            marks[mark as usize].get_or_insert(now);
        }
    }

    /// All daemons are ready, and have the command to start their ranks.
    pub(super) fn all_here(&mut self) {
        self.here = Some(self.begun.elapsed());
    }

    pub(super) fn end(&mut self) {
        self.ended.get_or_insert(self.begun.elapsed());
    }

    /// As a table: milliseconds from the start of the launcher, and a dash for what did not happen (or, for a
    /// shell, happened on another host).
    pub(super) fn table(&self) -> String {
        let wide = self
            .hosts
            .iter()
            .map(|(name, ..)| name.chars().count())
            .max()
            .unwrap_or(0)
            .max(4);
        let mut text = format!(
            "start-up of {} ranks on {} hosts, in ms\n{:wide$} {:>6} {:>10} {:>10} {:>10} {:>10}\n",
            self.ranks,
            self.hosts.len(),
            "host",
            "ranks",
            "shell",
            "here",
            "started",
            "met"
        );
        for (name, ranks, marks) in &self.hosts {
            let _ = write!(text, "{name:wide$} {ranks:>6}");
            for mark in marks {
                let _ = write!(text, " {:>10}", shown(*mark));
            }
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "all here after {} ms, all over after {} ms",
            shown(self.here),
            shown(self.ended)
        );
        text
    }
}

fn shown(time: Option<Duration>) -> String {
    time.map_or_else(
        || "-".to_owned(),
        |time| format!("{:.1}", time.as_secs_f64() * 1e3),
    )
}

#[cfg(test)]
mod tests {
    use super::super::place::{named, place};
    use super::*;

    #[test]
    fn what_happened_is_in_its_column_and_the_rest_a_dash() {
        let begun = Instant::now();
        let mut timeline = Timeline::new(begun, &place(named("first,b").unwrap(), 3).unwrap(), 3);
        timeline.mark(1, Mark::Shell);
        timeline.mark(1, Mark::Here);
        timeline.mark(9, Mark::Here);
        let table = timeline.table();
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["host", "ranks", "shell", "here", "started", "met"]);
        assert_eq!(
            (lines[2][0], lines[2][1], &lines[2][4..]),
            ("first", "2", &["-", "-"][..])
        );
        assert!(lines[2][2].parse::<f64>().unwrap() <= lines[2][3].parse::<f64>().unwrap());
        assert_eq!(lines[3], ["b", "1", "-", "-", "-", "-"]);
        assert_eq!(lines[4].join(" "), "all here after - ms, all over after - ms");
    }
}
