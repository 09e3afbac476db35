//! The script of faults: one rule a line, `WHEN TARGET ACTION [times N]`.
//!
//! ```text
//!   WHEN    always | after N UNIT | every N UNIT | probability P [seed S] | at TIME
//!   UNIT    frames | commands | completions | doorbells | interrupts | accesses | ...  TIME  300us  1.5s
//!   TARGET  switch | link | model | pf | vf0 | vf*, and parts of a function:
//!           vf0.wq1  vf0.wq  pf.devcmd  vf*.devcmd.58
//!   ACTION  as the table below has it                                 #  the rest of a line is a remark
//! ```
//!
//! `docs/vic-model.md` explains each action.

use super::actions::{ACTIONS, Acts, Bounds, Part, STATE, Words, digits};
use super::{Point, Rule, Scope, Target, When};
use crate::error::Error;
use crate::random::Random;

/// Reads a script for a model with these bounds.
///
/// # Errors
/// [`Error::Script`] with the line that is wrong, and why.
pub(crate) fn parse(text: &str, bounds: &Bounds) -> Result<Vec<Rule>, Error> {
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        rules.push(rule(line, bounds).map_err(|why| Error::Script { line: number, why })?);
    }
    Ok(rules)
}

fn rule(line: &str, bounds: &Bounds) -> Result<Rule, String> {
    let words = &mut Words::new(line, bounds);
    let (when, unit) = when(words)?;
    let (part, target) = target(words)?;
    let word = words.next("an action")?;
    let known = ACTIONS
        .iter()
        .find(|(parts, name, ..)| parts.contains(&part) && *name == word);
    let Some((_, _, acts, make)) = known else {
        return Err(no_action(part, word));
    };
    let action = make(words)?;
    let left = match words.words.next_if_eq(&"times") {
        // `after` and `at` act once.
        Some(_) if matches!(when, When::At(_) | When::After(_)) => words.number("a count", 1..=1)?,
        Some(_) => words.number("a count", 1..=u64::MAX)?,
        None => u64::MAX,
    };
    if let Some(word) = words.words.next() {
        return Err(format!("`{word}` is too much"));
    }
    let (point, is_deed) = match acts {
        Acts::At(point) => (Some(at_point(*point, unit, &when)?), false),
        Acts::Deed => (deed_point(unit, &when)?, true),
    };
    Ok(Rule::new(when, point, target, action, is_deed, left))
}

fn no_action(part: Part, word: &str) -> String {
    let fit = ACTIONS
        .iter()
        .filter(|(parts, ..)| parts.contains(&part))
        .map(|(_, name, ..)| *name);
    let fit: Vec<&str> = fit.collect();
    format!("{} has no `{word}`; it has {}", part.name(), fit.join(", "))
}

/// The moment, and what it counts.
fn when<'a>(words: &mut Words<'a>) -> Result<(When, Option<&'a str>), String> {
    match words.next("a moment")? {
        "always" => Ok((When::Always, None)),
        "after" => {
            let count = words.number("a count", 0..=u64::MAX - 1)?;
            Ok((When::After(count), Some(words.next("what is counted")?)))
        }
        "every" => {
            let count = words.number("a count", 1..=u64::MAX)?;
            Ok((When::Every(count), Some(words.next("what is counted")?)))
        }
        "probability" => {
            let share = probability(words.next("a probability (above 0, and 1 at most)")?)?;
            let seed = match words.words.next_if_eq(&"seed") {
                Some(_) => words.number("a seed", 0..=u64::MAX)?,
                None => 0,
            };
            Ok((When::Chance(share, Random::new(seed)), None))
        }
        "at" => Ok((
            When::At(u64::try_from(words.time(STATE)?.as_nanos()).unwrap_or(u64::MAX)),
            None,
        )),
        word => Err(format!(
            "`{word}` is no moment; begin with always, after, every, probability or at"
        )),
    }
}

/// Parses a probability. Zero is refused: what never happens is no fault.
fn probability(word: &str) -> Result<f64, String> {
    let share = word.parse::<f64>().ok();
    share
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| format!("`{word}` is not a probability: that is above 0, and 1 at most"))
}

fn target(words: &mut Words<'_>) -> Result<(Part, Target), String> {
    let word = words.next("a target")?;
    let all = Target {
        scope: Scope::Any,
        index: None,
    };
    match word {
        "switch" => return Ok((Part::Switch, all)),
        "link" => return Ok((Part::Link, all)),
        "model" => return Ok((Part::Model, all)),
        _ => {}
    }
    let (name, rest) = word.split_once('.').unwrap_or((word, ""));
    let scope = match name {
        "pf" => Scope::One(0),
        "vf*" => Scope::Vfs,
        name => {
            let vf = name.strip_prefix("vf").and_then(digits);
            let vf = vf.filter(|vf| *vf + 1 < words.bounds.functions as u64);
            match vf {
                Some(vf) => Scope::One(1 + vf as usize),
                None => return Err(no_target(word, words.bounds.functions)),
            }
        }
    };
    let (part, index) = part(rest).ok_or_else(|| {
        format!("`{rest}` is no part of a function: wq, rq, cq, intr (with a number or not), devcmd, devcmd.N, dma")
    })?;
    if let (Some(index), Some(count)) = (index, words.bounds.count(part))
        && index >= count
    {
        let (name, last) = (part.name(), count.saturating_sub(1));
        return Err(format!(
            "`{rest}` is not there: a function has {name}0 to {name}{last}"
        ));
    }
    Ok((part, Target { scope, index }))
}

fn no_target(word: &str, functions: usize) -> String {
    let vfs = match functions {
        0 | 1 => "this model has no virtual functions".to_owned(),
        2 => "or vf0".to_owned(),
        more => format!("vf*, or vf0 to vf{}", more - 2),
    };
    format!("`{word}` is no target: switch, link, model, pf, {vfs}")
}

fn part(word: &str) -> Option<(Part, Option<usize>)> {
    match word {
        "" => return Some((Part::Function, None)),
        "devcmd" => return Some((Part::Devcmd, None)),
        "dma" => return Some((Part::Dma, None)),
        _ => {}
    }
    if let Some(number) = word.strip_prefix("devcmd.") {
        // A command's number has fourteen bits (3.3).
        let number = digits(number).filter(|number| (1..1 << 14).contains(number))?;
        return Some((Part::Devcmd, Some(number as usize)));
    }
    let kinds = [
        ("intr", Part::Intr),
        ("wq", Part::Wq),
        ("rq", Part::Rq),
        ("cq", Part::Cq),
    ];
    let (rest, part) = kinds
        .iter()
        .find_map(|(name, part)| Some((word.strip_prefix(name)?, *part)))?;
    match rest {
        "" => Some((part, None)),
        number => Some((part, Some(usize::try_from(digits(number)?).ok()?))),
    }
}

/// Returns what is counted at a point.
fn unit_of(point: Point) -> &'static str {
    match point {
        Point::Command => "commands",
        Point::Transmit | Point::Receive | Point::Packet => "frames",
        Point::Completion => "completions",
        Point::Doorbell => "doorbells",
        Point::Enable => "enables",
        Point::Disable => "disables",
        Point::Interrupt => "interrupts",
        Point::Dma => "accesses",
        Point::Unmap => "unmaps",
    }
}

fn at_point(point: Point, unit: Option<&str>, when: &When) -> Result<Point, String> {
    if matches!(when, When::At(_)) {
        return Err(
            "this action happens to an event: begin with always, after, every or probability".to_owned(),
        );
    }
    match unit {
        Some(unit) if unit != unit_of(point) => {
            Err(format!("this action counts {}, not {unit}", unit_of(point)))
        }
        _ => Ok(point),
    }
}

/// Returns where a deed is counted; none, by time.
fn deed_point(unit: Option<&str>, when: &When) -> Result<Option<Point>, String> {
    match (unit, when) {
        (None, When::At(_)) => Ok(None),
        (None, _) => Err("this action is done at a moment: begin with at, after or every".to_owned()),
        (Some("frames"), _) => Ok(Some(Point::Transmit)),
        (Some("commands"), _) => Ok(Some(Point::Command)),
        (Some("completions"), _) => Ok(Some(Point::Completion)),
        (Some("doorbells"), _) => Ok(Some(Point::Doorbell)),
        (Some("interrupts"), _) => Ok(Some(Point::Interrupt)),
        (Some("enables"), _) => Ok(Some(Point::Enable)),
        (Some("disables"), _) => Ok(Some(Point::Disable)),
        (Some("accesses"), _) => Ok(Some(Point::Dma)),
        (Some("unmaps"), _) => Ok(Some(Point::Unmap)),
        (Some(unit), _) => Err(format!(
            "`{unit}` cannot be counted: frames, commands, completions, doorbells, interrupts, enables, disables, accesses, unmaps"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Action;
    use proptest::prelude::*;

    fn parse(text: &str, functions: usize) -> Result<Vec<Rule>, Error> {
        super::parse(text, &Bounds::of(functions))
    }

    #[test]
    fn every_action_is_read_with_each_part_that_it_goes_with() {
        for (parts, name, acts, _) in ACTIONS {
            for part in *parts {
                let target = match part {
                    Part::Switch | Part::Link | Part::Model => part.name().to_owned(),
                    Part::Function => "vf1".to_owned(),
                    part => format!("vf1.{}", part.name()),
                };
                let moment = if matches!(acts, Acts::Deed) {
                    "at 1ms"
                } else {
                    "always"
                };
                // Nothing, a number, a time, an address: one of these.
                let kinds: [&[&str]; 4] = [&[""], &[" 1", " 100"], &[" 5ms"], &[" 02:00:00:00:00:09"]];
                let is_read =
                    |follows: &&str| parse(&format!("{moment} {target} {name}{follows}"), 3).is_ok();
                let read = kinds.iter().filter(|follows| follows.iter().any(is_read));
                assert_eq!(read.count(), 1, "{target} {name}");
            }
        }
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, word) in [
            ("# fine\n\nsometimes switch drop", 3, "`sometimes`"),
            ("always switch", 1, "ends"),
            ("always switch explode", 1, "it has drop, duplicate"),
            ("always vf2.wq0 error-status 3", 1, "vf0 to vf1"),
            ("always vf0.xq error-status 3", 1, "`xq`"),
            (
                "always vf0.wq0 error-status",
                1,
                "ends where an error_status (1 to 4294967295)",
            ),
            ("always vf0.devcmd error 256", 1, "`256`"),
            ("at 1s switch drop", 1, "an event"),
            ("always link down", 1, "a moment"),
            ("after 3 frames vf0.devcmd error 1", 1, "counts commands"),
            ("after 3 moons link down", 1, "`moons`"),
            ("probability 1.5 switch drop", 1, "1.5"),
            ("every 0 frames switch drop", 1, "1 to"),
            ("always switch delay 5", 1, "`5`"),
            ("always switch drop times 3 more", 1, "`more`"),
            ("at 1s vf0 mac 02:00", 1, "`02:00`"),
            // Values that cannot be: the error has the value, and the valid ones.
            (
                "always vf0.devcmd error 0",
                1,
                "`0` is not an error's number: that may be 1 to 255",
            ),
            ("always vf0.devcmd.31 errno 0", 1, "1 to 255"),
            ("always vf0.devcmd error +5", 1, "`+5`"),
            ("always vf0.devcmd.16384 zeros", 1, "`devcmd.16384`"),
            ("always vf0.devcmd58 zeros", 1, "`devcmd58`"),
            ("always vf0.wq0 error-status 0", 1, "1 to 4294967295"),
            ("always vf0.cq0 wrong-queue 1024", 1, "0 to 1023"),
            ("always vf0.cq0 wrong-type 128", 1, "0 to 127"),
            ("always vf0.cq0 color-late 61s", 1, "`61s` is out of range"),
            ("always vf0.cq0 color-late 0us", 1, "1µs to 60s"),
            ("always vf0.dma slow 2s", 1, "1µs to 1s"),
            ("always vf0.dma3 unmapped", 1, "`dma3`"),
            ("always vf0.wq6 lost-doorbell", 1, "wq0 to wq5"),
            ("at 1s vf0.intr6 spurious", 1, "intr0 to intr5"),
            ("always switch pad 0", 1, "1 to 9208"),
            ("always switch oversize 13", 1, "14 to 9208"),
            ("at 1s link mtu 67", 1, "68 to 9000"),
            ("at 1s link mtu 9001", 1, "68 to 9000"),
            ("at 1s vf0 missing 40", 1, "1, 2, 3, 4, 10"),
            ("at 1s vf0 count-zero 0", 1, "`0` is not a type"),
            ("at 1s vf0 table-cut 10", 1, "0 to 9"),
            ("at 1s vf0 mac 03:00:00:00:00:01", 1, "of one station"),
            ("at 1s vf0 mac 00:00:00:00:00:00", 1, "of one station"),
            ("at 1s vf0 mac +2:00:00:00:00:01", 1, "`+2:00:00:00:00:01`"),
            ("at 8000h link down", 1, "`8000h`"),
            ("at 700000s link down", 1, "`700000s` is out of range"),
            ("at 1e3s link down", 1, "`1e3s`"),
            ("at infs link down", 1, "`infs`"),
            ("probability 0 switch drop", 1, "above 0"),
            ("probability nan switch drop", 1, "`nan`"),
            ("always switch drop times 0", 1, "1 to"),
            (
                "at 1s link down times 2",
                1,
                "`2` is not a count: that may be 1 to 1",
            ),
            ("always vf+1.wq0 lost-doorbell", 1, "`vf+1.wq0`"),
        ] {
            match parse(text, 3) {
                Err(Error::Script { line: found, why }) => {
                    assert_eq!(found, line, "{text}");
                    assert!(why.contains(word), "{text}: {why}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_examples_are_read() {
        let text = "after 1000 frames vf0.wq0 error-status 3\nprobability 0.01 seed 7 switch drop\nalways vf*.devcmd.58 error 10 times 2 # full\n";
        let rules = parse(text, 3).unwrap();
        assert_eq!(rules.len(), 3);
        assert_eq!(
            rules[2].target,
            Target {
                scope: Scope::Vfs,
                index: Some(58)
            }
        );
        assert_eq!((rules[2].left, rules[2].action), (2, Action::Error(10)));
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_judged(text in "[a-z0-9 .*:#\n-]{0,80}") {
            let _ = parse(&text, 3);
        }
    }
}
