//! A chain of steps: each rests on those before it, so that the first broken one ends it.

use doorbell_bench::report::printable;
use doorbell_fabric::error::RailError;
use serde::Serialize;

/// What a rail needs, step by step, and how far it holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Chain {
    /// The rail, or `machine` for what concerns all of them.
    pub(super) rail: String,
    pub(super) verdict: Verdict,
    /// In the order in which they rest on each other.
    pub(super) steps: Vec<Step>,
}

/// The result of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    /// It was tried to the end, and works.
    Usable,
    /// A step is broken: the last one that is shown, but for notes.
    Broken,
    /// Nothing broken was found, and it could not be tried to the end.
    Untried,
    /// There is no such rail on this host, and nothing is wrong with that.
    NotApplicable,
}

/// One step of a chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Step {
    /// A word that stays the same: for scripts.
    pub(super) step: &'static str,
    pub(super) is: Is,
    /// What the step found.
    pub(super) saw: String,
    /// Of a broken step: the likely cause.
    pub(super) cause: Option<String>,
    pub(super) fixes: Vec<Fix>,
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Is {
    Ok,
    Broken,
    /// It could not be found out.
    Unknown,
    NotApplicable,
    /// It works, and could be better.
    Note,
}

/// One thing to do about a broken step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fix {
    /// What to do, in words.
    pub(super) what: String,
    /// As a line for a shell, where one does it.
    pub(super) command: Option<String>,
}

impl Fix {
    /// Returns a fix that a command carries out.
    pub(super) fn run(command: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            command: Some(command.into()),
        }
    }

    /// Something that only a person can do.
    pub(super) fn hand(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            command: None,
        }
    }

    /// Whether its command changes a setting of doorbell's and nothing else.
    fn is_setting(&self) -> bool {
        let begins = |start| {
            self.command
                .as_deref()
                .is_some_and(|text| text.starts_with(start))
        };
        begins("export DOORBELL_") || begins("unset DOORBELL_")
    }

    /// A driver's remedy: the first command that it quotes, and the words around it.
    pub(super) fn quoted(remedy: &str) -> Self {
        // A command has several words; a name in quotes is none.
        let quoted = remedy.split('`').skip(1).step_by(2);
        let mut commands = quoted.filter(|text| text.contains(' ') && !text.contains('…'));
        Self {
            what: remedy.to_owned(),
            command: commands.next().map(str::to_owned),
        }
    }
}

/// The chain ended: at a broken step, or because it does not apply.
#[derive(Debug)]
pub(super) struct Ended;

/// Whether the chain goes on.
pub(super) type Link = Result<(), Ended>;

/// A chain that is being walked.
#[derive(Debug)]
pub(super) struct Walk {
    chain: Chain,
}

impl Walk {
    /// Walks the steps of `rail`.
    pub(super) fn along(rail: &str, steps: impl FnOnce(&mut Self) -> Link) -> Chain {
        let mut walk = Self {
            chain: Chain {
                rail: printable(rail),
                verdict: Verdict::Untried,
                steps: Vec::new(),
            },
        };
        // An end has set its verdict.
        let _ = steps(&mut walk);
        walk.chain
    }

    /// What changes a setting comes before what changes the host: the first fix is the one that `--fix` has
    /// run.
    fn add(&mut self, step: &'static str, is: Is, saw: impl AsRef<str>, mut fixes: Vec<Fix>) {
        fixes.sort_by_key(|fix| !fix.is_setting());
        self.chain.steps.push(Step {
            step,
            is,
            saw: printable(saw.as_ref()),
            cause: None,
            fixes,
        });
    }

    /// It is as it should be.
    pub(super) fn ok(&mut self, step: &'static str, saw: impl AsRef<str>) {
        self.add(step, Is::Ok, saw, Vec::new());
    }

    /// It is as it should be, and shows that the whole rail works.
    pub(super) fn proved(&mut self, step: &'static str, saw: impl AsRef<str>) {
        self.ok(step, saw);
        self.chain.verdict = Verdict::Usable;
    }

    /// It could not be found out; what to do to find it out.
    pub(super) fn unknown(&mut self, step: &'static str, saw: impl AsRef<str>, fixes: Vec<Fix>) {
        self.add(step, Is::Unknown, saw, fixes);
    }

    /// The rest of the rail works, and this could not be tried.
    pub(super) fn untried(&mut self, step: &'static str, saw: impl AsRef<str>, fixes: Vec<Fix>) {
        self.unknown(step, saw, fixes);
        self.chain.verdict = Verdict::Untried;
    }

    /// Records a step that does not apply here.
    pub(super) fn not_applicable(&mut self, step: &'static str, saw: impl AsRef<str>) {
        self.add(step, Is::NotApplicable, saw, Vec::new());
    }

    /// It works and could be better: how.
    pub(super) fn note(&mut self, step: &'static str, saw: impl AsRef<str>, fixes: Vec<Fix>) {
        self.add(step, Is::Note, saw, fixes);
    }

    /// The first broken link, which ends the chain.
    pub(super) fn broken(
        &mut self,
        step: &'static str,
        saw: impl AsRef<str>,
        cause: impl AsRef<str>,
        fixes: Vec<Fix>,
    ) -> Ended {
        self.add(step, Is::Broken, saw, fixes);
        if let Some(last) = self.chain.steps.last_mut() {
            last.cause = Some(printable(cause.as_ref()));
        }
        self.chain.verdict = Verdict::Broken;
        Ended
    }

    /// A step at which the driver refused a rail or a peer, with the driver's reason and remedy.
    pub(super) fn refused(&mut self, step: &'static str, error: &RailError, cause: &str) -> Ended {
        match error {
            RailError::Unusable { reason, remedy, .. } | RailError::Taken { reason, remedy, .. } => {
                self.broken(step, reason, cause, vec![Fix::quoted(remedy)])
            }
            error => self.broken(
                step,
                error.to_string(),
                error.help().cause,
                vec![Fix::hand(error.help().next)],
            ),
        }
    }

    /// There is no such rail here, rightly so.
    pub(super) fn end_without(&mut self, step: &'static str, saw: impl AsRef<str>) -> Ended {
        self.not_applicable(step, saw);
        self.chain.verdict = Verdict::NotApplicable;
        Ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_broken_link_ends_a_chain() {
        let chain = Walk::along("udp:x0", |walk| {
            walk.proved("a", "fine");
            walk.note("b", "slow", vec![Fix::hand("hurry")]);
            Err(walk.broken(
                "c",
                "down",
                "a cable",
                vec![Fix::run("ip link set x0 up", "set it up")],
            ))
        });
        assert_eq!(chain.verdict, Verdict::Broken);
        let last = chain.steps.last().unwrap();
        assert_eq!((last.is, last.cause.as_deref()), (Is::Broken, Some("a cable")));
    }

    #[test]
    fn a_setting_is_changed_before_the_host() {
        let chain = Walk::along("udp:x0", |walk| {
            let fixes = vec![
                Fix::run("ip address add 169.254.1.1/16 dev x0", "the host"),
                Fix::hand("a person"),
                Fix::run("export DOORBELL_UDP_FAMILY=ipv6", "a setting"),
            ];
            Err(walk.broken("address", "none", "nothing gave it one", fixes))
        });
        let order: Vec<&str> = chain.steps[0].fixes.iter().map(|fix| fix.what.as_str()).collect();
        assert_eq!(order, ["a setting", "the host", "a person"]);
    }

    #[test]
    fn what_was_not_tried_is_not_called_usable() {
        let seen = Walk::along("x", |walk| {
            walk.ok("a", "fine");
            walk.unknown("b", "no rights", Vec::new());
            Ok(())
        });
        assert_eq!(seen.verdict, Verdict::Untried);
        let without = Walk::along("x", |walk| Err(walk.end_without("a", "none here")));
        assert_eq!(without.verdict, Verdict::NotApplicable);
    }

    #[test]
    fn a_remedy_gives_its_first_command() {
        let command = |text: &str| Fix::quoted(text).command;
        assert_eq!(
            command("`ip link set v0 up`, and look at its cable").as_deref(),
            Some("ip link set v0 up")
        );
        assert_eq!(command("name `shm` for ranks of one host"), None);
        assert_eq!(command("`ip address add … dev v0`"), None);
    }

    #[test]
    fn what_others_named_does_not_reach_the_terminal_as_it_is() {
        let chain = Walk::along("udp:\u{1b}[31m", |walk| {
            walk.ok("a", "\u{1b}]0;x\u{7}");
            Ok(())
        });
        assert!(!chain.rail.contains('\u{1b}') && !chain.steps[0].saw.contains('\u{1b}'));
    }
}
