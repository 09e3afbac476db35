//! The script of faults: one rule a line, `WHEN TARGET ACTION [times N]`.
//!
//! ```text
//!   WHEN    always | after N UNIT | every N UNIT | probability P [seed S] | at TIME
//!   UNIT    frames | commands | completions | doorbells | interrupts | accesses       TIME   300us  5ms  1.5s
//!   TARGET  switch | link | model | pf | vf0 | vf*, and parts of a function: vf0.wq1  vf0.wq  pf.devcmd  vf*.devcmd.58
//!   ACTION  as the table below has it                                                  #  the rest of a line is a remark
//! ```
//!
//! `docs/vic-model.md` explains each action.

use super::actions::{ACTIONS, Acts, Part, Words};
use super::{Point, Rule, Target, When, Whom};
use crate::error::Error;
use crate::random::Random;

/// Reads a script for a model with so many functions, the physical one included.
///
/// # Errors
/// [`Error::Script`] with the line that is wrong, and why.
pub(crate) fn parse(text: &str, functions: usize) -> Result<Vec<Rule>, Error> {
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        if line.trim().is_empty() {
            continue;
        }
        rules.push(rule(line, functions).map_err(|why| Error::Script { line: number, why })?);
    }
    Ok(rules)
}

fn rule(line: &str, functions: usize) -> Result<Rule, String> {
    let words = &mut Words(line.split_ascii_whitespace().peekable());
    let (when, unit) = when(words)?;
    let (part, target) = target(words, functions)?;
    let word = words.next("an action")?;
    let known = ACTIONS
        .iter()
        .find(|(parts, name, ..)| parts.contains(&part) && *name == word);
    let Some((_, _, acts, make)) = known else {
        return Err(no_action(part, word));
    };
    let action = make(words)?;
    let left = match words.0.next_if_eq(&"times") {
        Some(_) => words.number()?,
        None => u64::MAX,
    };
    if let Some(word) = words.0.next() {
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
        "after" => Ok((When::After(words.number()?), Some(words.next("what is counted")?))),
        "every" => match words.number()? {
            0 => Err("`every 0` never comes".to_owned()),
            count => Ok((When::Every(count), Some(words.next("what is counted")?))),
        },
        "probability" => {
            let share: f64 = words.number()?;
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("a probability of {share} is not between 0 and 1"));
            }
            let seed = match words.0.next_if_eq(&"seed") {
                Some(_) => words.number()?,
                None => 0,
            };
            Ok((When::Chance(share, Random::new(seed)), None))
        }
        "at" => Ok((
            When::At(u64::try_from(words.time()?.as_nanos()).unwrap_or(u64::MAX)),
            None,
        )),
        word => Err(format!(
            "`{word}` is no moment; begin with always, after, every, probability or at"
        )),
    }
}

fn target(words: &mut Words<'_>, functions: usize) -> Result<(Part, Target), String> {
    let word = words.next("a target")?;
    let all = Target {
        whom: Whom::Any,
        index: None,
    };
    match word {
        "switch" => return Ok((Part::Switch, all)),
        "link" => return Ok((Part::Link, all)),
        "model" => return Ok((Part::Model, all)),
        _ => {}
    }
    let (name, rest) = word.split_once('.').unwrap_or((word, ""));
    let whom = match name {
        "pf" => Whom::One(0),
        "vf*" => Whom::Vfs,
        name => {
            let vf = name
                .strip_prefix("vf")
                .and_then(|number| number.parse::<usize>().ok());
            let vf = vf.filter(|vf| vf + 1 < functions);
            Whom::One(
                1 + vf.ok_or_else(|| {
                    format!(
                        "`{word}` is no target: switch, link, model, pf, vf*, or vf0 to vf{}",
                        functions.saturating_sub(2)
                    )
                })?,
            )
        }
    };
    let (part, index) = part(rest).ok_or_else(|| {
        format!("`{rest}` is no part of a function: wq, rq, cq, intr (with a number or not), devcmd, devcmd.N, dma")
    })?;
    Ok((part, Target { whom, index }))
}

fn part(word: &str) -> Option<(Part, Option<usize>)> {
    if word.is_empty() {
        return Some((Part::Function, None));
    }
    let kinds = [
        ("devcmd.", Part::Devcmd),
        ("devcmd", Part::Devcmd),
        ("intr", Part::Intr),
        ("dma", Part::Dma),
        ("wq", Part::Wq),
        ("rq", Part::Rq),
        ("cq", Part::Cq),
    ];
    let (rest, part) = kinds
        .iter()
        .find_map(|(name, part)| Some((word.strip_prefix(name)?, *part)))?;
    match rest {
        "" => Some((part, None)),
        number => Some((part, Some(number.parse().ok()?))),
    }
}

/// What is counted at a point.
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

/// Where a deed is counted; none, by time.
fn deed_point(unit: Option<&str>, when: &When) -> Result<Option<Point>, String> {
    match (unit, when) {
        (None, When::At(_)) => Ok(None),
        (None, _) => Err("this action is done at a moment: begin with at, after or every".to_owned()),
        (Some("frames"), _) => Ok(Some(Point::Transmit)),
        (Some("commands"), _) => Ok(Some(Point::Command)),
        (Some("completions"), _) => Ok(Some(Point::Completion)),
        (Some("doorbells"), _) => Ok(Some(Point::Doorbell)),
        (Some("interrupts"), _) => Ok(Some(Point::Interrupt)),
        (Some(unit), _) => Err(format!(
            "`{unit}` cannot be counted: frames, commands, completions, doorbells, interrupts"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Action;
    use proptest::prelude::*;

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
                let read = ["", " 5", " 5ms", " 02:00:00:00:00:09"]
                    .iter()
                    .filter(|follows| parse(&format!("{moment} {target} {name}{follows}"), 3).is_ok());
                assert_eq!(read.count(), 1, "{target} {name}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, line, word) in [
            ("# fine\n\nsometimes switch drop", 3, "`sometimes`"),
            ("always switch", 1, "ends"),
            ("always switch explode", 1, "it has drop, duplicate"),
            ("always vf2.wq0 error-status 3", 1, "vf0 to vf1"),
            ("always vf0.xq error-status 3", 1, "`xq`"),
            ("always vf0.wq0 error-status", 1, "a number"),
            ("always vf0.devcmd error 256", 1, "`256`"),
            ("at 1s switch drop", 1, "an event"),
            ("always link down", 1, "a moment"),
            ("after 3 frames vf0.devcmd error 1", 1, "counts commands"),
            ("after 3 moons link down", 1, "`moons`"),
            ("probability 1.5 switch drop", 1, "1.5"),
            ("every 0 frames switch drop", 1, "never"),
            ("always switch delay 5", 1, "`5`"),
            ("always switch drop times 3 more", 1, "`more`"),
            ("at 1s vf0 mac 02:00", 1, "`02:00`"),
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
                whom: Whom::Vfs,
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
