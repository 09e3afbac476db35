//! The conversation with one rank: its lines, and its state.
//!
//! A rank may be a script that runs one program after another: each uses the line in turn, and its `init`
//! after the `finalize` of the previous one begins a new life of the rank.

use std::cmp::Ordering;

use super::spawn::Order;
use crate::launch::{Dialect, Pmi1, Program, Words, is_plain, shown};

/// Maximum bytes of a line, with its end.
const LINE: usize = 4096;
/// Maximum unread bytes of a rank: a client that sends more does not wait for answers.
const PENDING: usize = 64 << 10;

/// A request of a rank.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Greet,
    OtherVersion,
    Limits,
    Application,
    Name,
    Universe,
    Put {
        job: String,
        key: String,
        value: String,
    },
    Get {
        job: String,
        key: String,
    },
    Barrier,
    Finalize,
    Abort {
        code: u8,
        text: String,
    },
    Spawn(Box<Program>),
    /// A request for more processes of a kind that is not supported, with the reason.
    NoSpawn(&'static str),
    /// A request that is not supported, with the command of its answer.
    Refuse(&'static str),
}

/// The state of the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No version was sent yet. It may not be a PMI client at all, and end like this.
    #[default]
    Silent,
    Ready,
    AtBarrier,
    /// Within the lines of a spawn request.
    Ordering,
    /// Its spawn request is being carried out.
    AtSpawn,
    /// It has sent `finalize`.
    Finished,
    /// Its input is ignored.
    Over,
}

#[derive(Debug, Default)]
pub(super) struct Client {
    stage: Stage,
    heard: Vec<u8>,
    read: usize,
    order: Order,
    /// Whether it has sent `finalize`.
    took_leave: bool,
    /// How many programs have used the line before this one.
    life: u32,
    /// Whether its line has ended regularly, so that no other program follows.
    is_gone: bool,
}

impl Client {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.stage != Stage::Over {
            self.heard.drain(..self.read);
            self.read = 0;
            self.heard.extend_from_slice(bytes);
        }
    }

    /// Returns the next request, if a whole one is there and may be handled now.
    pub(super) fn next(&mut self) -> Result<Option<Command>, String> {
        let asked = self.step();
        if asked.is_err() {
            *self = Self {
                stage: Stage::Over,
                life: self.life,
                ..Self::default()
            };
        }
        asked
    }

    fn step(&mut self) -> Result<Option<Command>, String> {
        loop {
            let rest = &self.heard[self.read..];
            if rest.len() > PENDING {
                return Err("it sends requests without waiting for answers".to_owned());
            }
            if matches!(self.stage, Stage::Over | Stage::AtBarrier | Stage::AtSpawn) {
                return Ok(None);
            }
            let Some((text, taken)) = Pmi1::split(rest)? else {
                return match rest.len() {
                    0..LINE => Ok(None),
                    _ => Err(format!("one of its lines has more than {LINE} bytes")),
                };
            };
            if taken > LINE {
                return Err(format!("one of its lines has more than {LINE} bytes"));
            }
            let line = rest[text].to_vec();
            self.read += taken;
            if let Some(ask) = self.line(&line)? {
                return Ok(Some(ask));
            }
        }
    }

    fn line(&mut self, line: &[u8]) -> Result<Option<Command>, String> {
        let text = std::str::from_utf8(line).ok().filter(|_| is_plain(line));
        let text = text.ok_or("one of its lines has characters other than printable ASCII")?;
        if self.stage == Stage::Ordering {
            if text != "endcmd" {
                return self.order.line(text).map(|()| None);
            }
            // Nothing else is handled until the answer.
            self.stage = Stage::AtSpawn;
            let ask = match std::mem::take(&mut self.order).whole()? {
                Ok(program) => Command::Spawn(Box::new(program)),
                Err(why) => Command::NoSpawn(why),
            };
            return Ok(Some(ask));
        }
        if text == "mcmd=spawn" && self.stage == Stage::Ready {
            self.stage = Stage::Ordering;
            return Ok(None);
        }
        let words = Pmi1::parse(text)?;
        self.command(&words).map(Some)
    }

    fn command(&mut self, words: &Words) -> Result<Command, String> {
        let out_of_turn = |stage: &str| {
            Err(format!(
                "`{}` is not a valid request {stage}",
                shown(&words.command)
            ))
        };
        match (self.stage, words.command.as_str()) {
            (Stage::Silent, "init") => self.begin(words),
            (Stage::Finished, "init") if self.took_leave => {
                (self.life, self.took_leave) = (self.life.saturating_add(1), false);
                self.stage = Stage::Silent;
                self.begin(words)
            }
            (Stage::Ready, "init") => Err(
                "a second program sends `init`, but the previous one ended without `finalize` \
                 (MPI_Finalize, or the end of its `World`)"
                    .to_owned(),
            ),
            // A client in an early stage may still abort.
            (_, "abort") => {
                self.stage = Stage::Finished;
                abort(words)
            }
            (Stage::Silent, _) => out_of_turn("before `init`"),
            (Stage::Ready, _) => self.ready(words),
            _ => out_of_turn("after `finalize`"),
        }
    }

    fn begin(&mut self, words: &Words) -> Result<Command, String> {
        if words.number("pmi_version")? != 1 {
            return Ok(Command::OtherVersion);
        }
        self.stage = Stage::Ready;
        Ok(Command::Greet)
    }

    fn ready(&mut self, words: &Words) -> Result<Command, String> {
        let word = |name: &str| {
            let word = words.get(name).map(str::to_owned);
            word.ok_or_else(|| format!("its `{}` lacks `{name}`", shown(&words.command)))
        };
        Ok(match words.command.as_str() {
            "get_maxes" => Command::Limits,
            "get_appnum" => Command::Application,
            "get_my_kvsname" => Command::Name,
            "get_universe_size" => Command::Universe,
            "put" => Command::Put {
                job: word("kvsname")?,
                key: word("key")?,
                value: word("value")?,
            },
            "get" => Command::Get {
                job: word("kvsname")?,
                key: word("key")?,
            },
            "barrier_in" => {
                self.stage = Stage::AtBarrier;
                Command::Barrier
            }
            "finalize" => {
                (self.stage, self.took_leave) = (Stage::Finished, true);
                Command::Finalize
            }
            "publish_name" => Command::Refuse("publish_result"),
            "unpublish_name" => Command::Refuse("unpublish_result"),
            "lookup_name" => Command::Refuse("lookup_result"),
            "spawn" => Command::Refuse("spawn_result"),
            other => return Err(format!("`{}` is not a request of PMI-1", shown(other))),
        })
    }

    /// Returns how many programs have used the line before this one; `None` when no other follows.
    pub(super) fn life(&self) -> Option<u32> {
        (!self.is_gone).then_some(self.life)
    }

    /// Reverts the life that its `init` has begun; another program may try again later.
    pub(super) fn refuse(&mut self) {
        (self.stage, self.took_leave) = (Stage::Finished, true);
        self.life = self.life.saturating_sub(1);
    }

    /// Returns the life in whose barrier it is, if any.
    pub(super) fn is_at_barrier(&self) -> Option<u32> {
        (self.stage == Stage::AtBarrier).then_some(self.life)
    }

    /// Whether the barrier of a life has to wait for it.
    pub(super) fn is_awaited(&self, life: u32) -> bool {
        match self.life.cmp(&life) {
            Ordering::Less => !self.is_gone,
            // One that failed is missing for good, which a barrier must not hide.
            Ordering::Equal => !matches!(self.stage, Stage::AtBarrier | Stage::Finished),
            Ordering::Greater => false,
        }
    }

    /// Releases it from the barrier of a life; returns whether it was there.
    pub(super) fn release(&mut self, life: u32) -> bool {
        let was = self.is_at_barrier() == Some(life);
        if was {
            self.stage = Stage::Ready;
        }
        was
    }

    /// Completes its spawn request; returns whether there was one.
    pub(super) fn answered(&mut self) -> bool {
        let was = self.stage == Stage::AtSpawn;
        if was {
            self.stage = Stage::Ready;
        }
        was
    }

    /// Handles the end of its line; returns whether it was regular.
    pub(super) fn leave(&mut self) -> bool {
        let well = matches!(self.stage, Stage::Silent | Stage::Finished);
        *self = Self {
            stage: if well { Stage::Finished } else { Stage::Over },
            took_leave: self.took_leave,
            life: self.life,
            is_gone: well,
            ..Self::default()
        };
        well
    }

    /// Whether it has sent `finalize`.
    pub(super) fn took_leave(&self) -> bool {
        self.took_leave
    }
}

fn abort(words: &Words) -> Result<Command, String> {
    let code = match words.get("exitcode") {
        None => 1,
        // A code out of range, or one that means success, is a failure all the same.
        Some(_) => u8::try_from(words.number("exitcode")? & 0xff).unwrap_or(1).max(1),
    };
    let text = words.get("message").or(words.get("msg")).unwrap_or_default();
    Ok(Command::Abort {
        code,
        text: shown(text),
    })
}
