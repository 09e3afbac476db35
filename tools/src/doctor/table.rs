//! Chains for people, and their fixes for a shell.

use std::fmt::Write as _;

use doorbell_bench::report::wrap;

use super::chain::{Chain, Fix, Is, Step, Verdict};

/// Where words begin that are beside a step's name.
const BESIDE: usize = 2 + 8 + 1 + 11;

/// Formats every chain, step by step.
pub(super) fn table(chains: &[Chain], width: usize, colour: bool) -> String {
    let mut text = String::new();
    for chain in chains {
        let (word, paint) = verdict(chain);
        if !text.is_empty() {
            text.push('\n');
        }
        // Writing into memory cannot fail.
        let _ = writeln!(
            text,
            "{}{word}",
            painted(&format!("{}: ", chain.rail), "1", colour)
        );
        if let (Some(at), Some(paint)) = (text.rfind(word), paint.filter(|_| colour)) {
            text.truncate(at);
            let _ = writeln!(text, "{}", painted(word, paint, colour));
        }
        for step in &chain.steps {
            add(&mut text, step, width, colour);
        }
    }
    text
}

fn verdict(chain: &Chain) -> (&'static str, Option<&'static str>) {
    match chain.verdict {
        _ if chain.rail == "machine" => ("what concerns every rail", None),
        Verdict::Usable => ("usable", Some("32")),
        Verdict::Broken => ("broken", Some("31")),
        Verdict::Untried => (
            "nothing broken was found, and it was not tried to the end",
            Some("33"),
        ),
        // A client's chain is no rail.
        Verdict::NotApplicable if chain.steps.iter().any(|step| step.step == "hints") => {
            ("needs what is not offered", None)
        }
        Verdict::NotApplicable => ("no such rail here", None),
    }
}

fn add(text: &mut String, step: &Step, width: usize, colour: bool) {
    let (word, paint) = match step.is {
        Is::Ok => ("ok", "32"),
        Is::Broken => ("broken", "31"),
        Is::Unknown => ("unknown", "33"),
        Is::NotApplicable => ("-", "2"),
        Is::Note => ("note", "36"),
    };
    let _ = write!(
        text,
        "  {}{} {:<10} ",
        painted(word, paint, colour),
        " ".repeat(8 - word.len()),
        step.step
    );
    wrap::add(text, &step.saw, BESIDE, BESIDE, width);
    let below = |text: &mut String, head: &str, words: &str| {
        text.extend(std::iter::repeat_n(' ', BESIDE));
        text.push_str(head);
        wrap::add(text, words, BESIDE + head.len(), BESIDE + head.len(), width);
    };
    if let Some(cause) = &step.cause {
        below(text, "cause: ", cause);
    }
    for fix in &step.fixes {
        below(text, "fix: ", &fix.what);
        if let Some(command) = &fix.command {
            // Never wrapped: it is to be copied.
            let _ = writeln!(text, "{}{command}", " ".repeat(BESIDE + "fix: ".len()));
        }
    }
}

fn painted(word: &str, paint: &str, colour: bool) -> String {
    if colour {
        format!("\x1b[{paint}m{word}\x1b[0m")
    } else {
        word.to_owned()
    }
}

/// The fixes as lines for a shell: those of what is broken to be run, advice and what only a person can do as
/// comments.
pub(super) fn fixes(chains: &[Chain]) -> String {
    let mut text = String::new();
    for (is, of) in [
        (Is::Broken, "broken"),
        (Is::Unknown, "unknown"),
        (Is::Note, "advice, for speed"),
    ] {
        for chain in chains {
            for step in chain.steps.iter().filter(|step| step.is == is) {
                for (at, fix) in step.fixes.iter().enumerate() {
                    // A fix of a broken step is not printed again, for another rail or as advice.
                    let is_told = |command: &String| text.lines().any(|line| line == command);
                    if fix.command.as_ref().is_some_and(is_told) {
                        continue;
                    }
                    // Of several, the first is to be run: the others are other ways to the same end, unless
                    // all belong together.
                    line(
                        &mut text,
                        (&chain.rail, step, of),
                        fix,
                        is == Is::Broken && (at == 0 || step.step == "group"),
                    );
                }
            }
        }
    }
    if text.is_empty() {
        text.push_str("# nothing to be done\n");
    }
    text
}

fn line(text: &mut String, (rail, step, of): (&str, &Step, &str), fix: &Fix, live: bool) {
    let _ = writeln!(
        text,
        "# {rail}, {} ({of}): {}",
        step.step,
        fix.what.replace('\n', " ")
    );
    if let Some(command) = &fix.command {
        let _ = writeln!(text, "{}{command}", if live { "" } else { "# " });
    }
}

#[cfg(test)]
mod tests {
    use super::super::chain::Walk;
    use super::*;

    fn sample() -> Vec<Chain> {
        let broken = Walk::along("udp:v0", |walk| {
            walk.ok("interface", "v0 is there");
            walk.note(
                "speed",
                "10 Mbit/s, half duplex",
                vec![Fix::run("ethtool -s v0 autoneg on", "let both ends agree")],
            );
            let fixes = vec![
                Fix::run("ip link set v0 up", "set it up"),
                Fix::hand("look at its cable"),
            ];
            Err(walk.broken("up", "v0 is down", "it has not been set up", fixes))
        });
        let none = Walk::along("xdp:lo", |walk| {
            Err(walk.end_without("interface", "the loopback has one queue"))
        });
        vec![broken, none]
    }

    #[test]
    fn the_table_is_this_one() {
        let expected = "\
udp:v0: broken
  ok       interface  v0 is there
  note     speed      10 Mbit/s, half duplex
                      fix: let both ends agree
                           ethtool -s v0 autoneg on
  broken   up         v0 is down
                      cause: it has not been set up
                      fix: set it up
                           ip link set v0 up
                      fix: look at its cable

xdp:lo: no such rail here
  -        interface  the loopback has one queue
";
        assert_eq!(table(&sample(), usize::MAX, false), expected);
        let painted = table(&sample(), usize::MAX, true);
        assert!(painted.contains("\u{1b}[31mbroken\u{1b}[0m"));
        let bare: String = painted
            .split("\u{1b}[")
            .enumerate()
            .map(|(at, part)| {
                if at == 0 {
                    part
                } else {
                    part.split_once('m').unwrap().1
                }
            })
            .collect();
        assert_eq!(bare, expected);
    }

    #[test]
    fn fixes_are_lines_for_a_shell_and_advice_is_not_run() {
        let expected = "\
# udp:v0, up (broken): set it up
ip link set v0 up
# udp:v0, up (broken): look at its cable
# udp:v0, speed (advice, for speed): let both ends agree
# ethtool -s v0 autoneg on
";
        assert_eq!(fixes(&sample()), expected);
        assert_eq!(fixes(&sample()[1..]), "# nothing to be done\n");
    }
}
