//! Ranks over usnic rails of one model. Every access of a register is a message, and judged; nothing goes
//! wrong on purpose.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell_fabric::signals::{self, ENDS};
use serde::Serialize;

use super::Options;
use super::process::{AMPLE, Process};
use super::rank::Totals;
use super::watch::{Growth, Samples};

const SCHEMA: &str = "doorbell.soak/1";
/// Samples of a whole run, about; never more often than twice a second.
const SAMPLES: f64 = 400.0;
/// How soon an interrupt is seen.
const LOOK: Duration = Duration::from_millis(100);
/// Between two lines of progress.
const LINES: Duration = Duration::from_secs(10);
/// Options of the model for rules that it checks on request only.
const STRICT: [&str; 6] = [
    "--trap",
    "all",
    "--strict",
    "--strict-disable",
    "--strict-hint",
    "--json",
];

/// What it came to.
#[derive(Debug, Serialize)]
struct Summary {
    schema: &'static str,
    scenario: &'static str,
    ranks: u32,
    seed: u64,
    seconds: f64,
    epochs: u64,
    messages: u64,
    bytes: u64,
    violations: usize,
    processes: Vec<Growth>,
    /// The summary that the model printed at its end.
    model: serde_json::Value,
    wrong: Vec<String>,
    good: bool,
}

/// Runs it; returns whether all was well.
pub(super) fn run(options: &Options) -> Result<bool, String> {
    let stop = Arc::new(AtomicBool::new(false));
    signals::set_flag_on(&ENDS, &stop).map_err(|error| format!("listen for signals: {error}"))?;
    let folder = tempfile::tempdir().map_err(|error| format!("a temporary folder: {error}"))?;
    let mut stage = Stage::set_up(options, folder.path())?;
    let began = Instant::now();
    let mut wrong = Vec::new();
    if let Err(why) = stage.play(Duration::from_secs_f64(60.0 * options.minutes), &stop) {
        wrong.push(why);
    }
    let seconds = began.elapsed().as_secs_f64();
    let summary = stage.judge(options, seconds, wrong);
    show(options, &summary)?;
    Ok(summary.good)
}

struct Stage {
    model: Process,
    agent: Process,
    ranks: Vec<Process>,
    samples: Vec<Samples>,
    violations: PathBuf,
    totals: Totals,
}

impl Stage {
    fn set_up(options: &Options, folder: &Path) -> Result<Self, String> {
        let program = program(options)?;
        let lab = program.with_file_name("doorbell-lab");
        let started = |program: &Path, words: &[&str]| {
            let mut command = Command::new(program);
            command.current_dir(folder).args(words);
            command
        };
        let violations = folder.join("violations.jsonl");
        let mut command = started(&lab, &["model", "vic", "--dir", "D"]);
        command.args(STRICT).arg("--vfs").arg(options.ranks.to_string());
        command.arg("--violations").arg(&violations);
        let model = Process::start("model", command)?;
        model.says()?;
        let agent = Process::start(
            "agent",
            started(&program, &["agent", "usnic", "--pf", "model/D/pf"]),
        )?;
        agent.says()?;
        let ranks = (0..options.ranks).map(|rank| start_rank(options, folder, rank));
        let ranks: Vec<Process> = ranks.collect::<Result<_, _>>()?;
        let watched = [&model, &agent].into_iter().chain(&ranks);
        let samples = watched.map(|process| Samples::of(&process.name)).collect();
        Ok(Self {
            model,
            agent,
            ranks,
            samples,
            violations,
            totals: Totals::default(),
        })
    }

    /// Watches until all ranks have ended, or a signal ends all.
    fn play(&mut self, lasts: Duration, stop: &AtomicBool) -> Result<(), String> {
        let step = Duration::from_secs_f64((lasts.as_secs_f64() / SAMPLES).max(0.5));
        let (began, mut next_line) = (Instant::now(), LINES);
        let terminal = std::io::stderr().is_terminal();
        loop {
            let next = Instant::now() + step;
            while Instant::now() < next {
                std::thread::sleep(LOOK.min(step));
                if stop.load(Ordering::Relaxed) {
                    return Err(format!(
                        "interrupted after {:.0} s",
                        began.elapsed().as_secs_f64()
                    ));
                }
            }
            let running = self.look()?;
            if running == 0 {
                return Ok(());
            }
            if running == self.ranks.len() && began.elapsed() < lasts {
                self.sample();
            }
            if began.elapsed() > lasts + AMPLE {
                return Err(format!("{running} ranks do not end"));
            }
            if terminal && began.elapsed() >= next_line {
                next_line += LINES;
                self.line(began.elapsed());
            }
        }
    }

    /// How many ranks run; an error where anything has ended that should not.
    fn look(&mut self) -> Result<usize, String> {
        for process in [&mut self.model, &mut self.agent] {
            if let Some(code) = process.ended()? {
                return Err(format!("the {} has ended with status {code}", process.name));
            }
        }
        if let Some(line) = self.ranks[0].last() {
            self.totals =
                serde_json::from_str(&line).map_err(|error| format!("rank 0 printed {line}: {error}"))?;
        }
        let mut running = 0;
        for rank in &mut self.ranks {
            match rank.ended()? {
                None => running += 1,
                Some(0) => {}
                Some(code) => return Err(format!("{} has ended with status {code}", rank.name)),
            }
        }
        Ok(running)
    }

    fn sample(&mut self) {
        let watched = [&self.model, &self.agent].into_iter().chain(&self.ranks);
        for (process, samples) in watched.zip(&mut self.samples) {
            if let Some(holds) = process.holds() {
                samples.add(holds);
            }
        }
    }

    fn violations(&self) -> usize {
        std::fs::read_to_string(&self.violations).map_or(0, |text| text.lines().count())
    }

    fn line(&self, after: Duration) {
        let held: Vec<String> = self
            .samples
            .iter()
            .map(|samples| {
                let holds = samples.last();
                format!("{} {} KiB/{}", samples.name, holds.kib, holds.descriptors)
            })
            .collect();
        let Totals { messages, bytes, .. } = self.totals;
        eprintln!(
            "{:>6.0} s: {messages} messages, {:.2} GB, {} violations; memory/descriptors: {}",
            after.as_secs_f64(),
            bytes as f64 / 1e9,
            self.violations(),
            held.join(", ")
        );
    }

    /// Ends what is left, and returns what it came to.
    fn judge(mut self, options: &Options, seconds: f64, mut wrong: Vec<String>) -> Summary {
        self.agent.terminate();
        wrong.extend(bad_end(&mut self.agent));
        self.model.terminate();
        wrong.extend(bad_end(&mut self.model));
        let said = self.model.last().unwrap_or_default();
        let violations = self.violations();
        if violations > 0 {
            wrong.push(format!("{violations} violations"));
        }
        if self.totals.epochs == 0 {
            wrong.push("no epoch was completed".to_owned());
        }
        let processes: Vec<Growth> = self.samples.iter().map(Samples::growth).collect();
        for one in processes.iter().filter(|one| one.grew) {
            wrong.push(format!("{} grew", one.process));
        }
        Summary {
            schema: SCHEMA,
            scenario: "usnic",
            ranks: options.ranks,
            seed: options.seed,
            seconds,
            epochs: self.totals.epochs,
            messages: self.totals.messages,
            bytes: self.totals.bytes,
            violations,
            processes,
            model: serde_json::from_str(&said).unwrap_or(serde_json::Value::Null),
            good: wrong.is_empty(),
            wrong,
        }
    }
}

fn bad_end(process: &mut Process) -> Option<String> {
    match process.end() {
        Ok(0) => None,
        Ok(code) => Some(format!("the {} ended with status {code}", process.name)),
        Err(why) => Some(why),
    }
}

/// The file of the program `doorbell`, which has `doorbell-lab` beside it.
fn program(options: &Options) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's file: {error}"))?;
    let file = options
        .program
        .clone()
        .unwrap_or_else(|| own.with_file_name("doorbell"));
    file.canonicalize()
        .map_err(|error| format!("{}: {error}; build it, or name it with --program", file.display()))
}

fn start_rank(options: &Options, folder: &Path, rank: u32) -> Result<Process, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's file: {error}"))?;
    let mut command = Command::new(own);
    command.current_dir(folder).arg("rank");
    command.arg("--seconds").arg((60.0 * options.minutes).to_string());
    command.arg("--seed").arg(options.seed.to_string());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DOORBELL_") {
            command.env_remove(name);
        }
    }
    command
        .env("DOORBELL_RANK", rank.to_string())
        .env("DOORBELL_SIZE", options.ranks.to_string())
        .env("DOORBELL_ROOT", format!("@doorbell-soak-{}", std::process::id()))
        .env("DOORBELL_RAILS", format!("usnic:model/D/vf{rank}"))
        .env("DOORBELL_DEADLINE", "120 s")
        .env("DOORBELL_QUIET", "30 s")
        // Ranks, model and agent are more than most machines have cores for.
        .env("DOORBELL_WAIT", "sleep");
    Process::start(&format!("rank {rank}"), command)
}

fn show(options: &Options, summary: &Summary) -> Result<(), String> {
    let json = serde_json::to_string_pretty(summary).map_err(|error| error.to_string())?;
    match options.json.as_deref() {
        Some(path) if path == Path::new("-") => {
            println!("{json}");
            return Ok(());
        }
        Some(path) => {
            std::fs::write(path, json + "\n").map_err(|error| format!("{}: {error}", path.display()))?
        }
        None => {}
    }
    println!(
        "soak usnic: {} ranks, {:.0} s, {} epochs, {} messages, {:.2} GB, {} violations",
        summary.ranks,
        summary.seconds,
        summary.epochs,
        summary.messages,
        summary.bytes as f64 / 1e9,
        summary.violations
    );
    summary
        .processes
        .iter()
        .for_each(|one| println!("  {}", one.line()));
    match summary.wrong.is_empty() {
        true => println!("  every message once, whole and in order; nothing grew: good"),
        false => println!("  WRONG: {}", summary.wrong.join("; ")),
    }
    Ok(())
}
