//! One side of a PMI conversation, without its descriptor: what may be asked when, and what counts as an answer.
//!
//! ```text
//!              ask Greet            the dialect's own steps           ask Finalize
//!   Silent ───────────────► Opening ───────────────────────► Ready ───────────────► Ended
//!                                                             │  ▲
//!                                              Put, Fence, Get└──┘
//!   any error, and Abort ──────────────────────────────────────────────────────────► Over
//! ```
//!
//! One question is under way at a time. Bytes come in any pieces. What a [`Dialect`] adds is how a question is written,
//! where an answer ends, and how it is split into words. Numbers, lengths and texts of the other side are hostile until
//! they were looked at: answers have bounded lengths and words, each word stands once, and a word that is needed is
//! there.

use std::fmt;

use super::{Kind, LaunchError};

/// Most words of one answer.
const MOST_WORDS: usize = 64;
/// Longest text of a launcher that is shown, in characters.
const SHOWN: usize = 120;

/// What a launcher is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Which version is spoken.
    Greet,
    /// Who we are (PMI-2).
    Join,
    /// How long keys and values may be (PMI-1).
    Limits,
    /// What the job is called.
    Name,
    /// A value for the others.
    Put {
        /// Its key.
        key: String,
        /// Its text.
        value: String,
    },
    /// Wait for all ranks.
    Fence,
    /// A value of somebody.
    Get {
        /// Its key.
        key: String,
    },
    /// Start more processes.
    Spawn(Box<Program>),
    /// End the job. Has no answer.
    Abort {
        /// With this status.
        code: u8,
        /// Why: printable ASCII.
        text: String,
    },
    /// Good-bye.
    Finalize,
}

/// Processes to be started, as a PMI says it. All texts are printable ASCII.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// What to run.
    pub name: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// How many processes.
    pub ranks: u32,
    /// Values that they have from the start.
    pub values: Vec<(String, String)>,
    /// What else the launcher is told: `host`, `wdir`.
    pub infos: Vec<(String, String)>,
}

impl Request {
    /// Its name in errors.
    pub fn step(&self) -> &'static str {
        match self {
            Self::Greet => "init",
            Self::Join => "fullinit",
            Self::Limits => "get_maxes",
            Self::Name => "job name",
            Self::Put { .. } => "put",
            Self::Fence => "fence",
            Self::Get { .. } => "get",
            Self::Spawn(_) => "spawn",
            Self::Abort { .. } => "abort",
            Self::Finalize => "finalize",
        }
    }
}

/// What came of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done,
    /// The value.
    Value(String),
    /// There is no such value.
    Absent,
    /// No processes are started: the launcher's words for why, which may be empty.
    Unspawned(String),
}

/// What the two sides have told each other so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Our rank.
    pub rank: u32,
    /// The job's size.
    pub size: u32,
    /// The launcher's name for the job.
    pub job: String,
    /// Longest key.
    pub key: usize,
    /// Longest value.
    pub value: usize,
}

/// One message of the other side: its command, and the words after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// What kind of message it is.
    pub command: String,
    words: Vec<(String, String)>,
}

impl Words {
    /// The words of a message in their order; the first has to be its command.
    ///
    /// # Errors
    /// What no message may look like.
    pub fn new(words: Vec<(String, String)>) -> Result<Self, String> {
        if words.len() > MOST_WORDS {
            return Err(format!("it has more than {MOST_WORDS} words"));
        }
        for (at, (name, _)) in words.iter().enumerate() {
            if words[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(format!("`{}` stands in it twice", shown(name)));
            }
        }
        let mut words = words.into_iter();
        match words.next() {
            Some((name, command)) if name == "cmd" && !command.is_empty() => Ok(Self {
                command,
                words: words.collect(),
            }),
            _ => Err("it does not begin with a command".to_owned()),
        }
    }

    /// A word, if it is there.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.words.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// A word that is a number.
    ///
    /// # Errors
    /// That it is missing, or none.
    pub fn number(&self, name: &str) -> Result<i64, String> {
        let text = self.get(name).ok_or_else(|| format!("it lacks `{name}`"))?;
        let number = text.parse();
        number.map_err(|_| format!("its `{name}` is `{}`, which is no number", shown(text)))
    }

    /// The return code: 0 where there is none.
    ///
    /// # Errors
    /// That it is no number.
    pub fn rc(&self) -> Result<i64, String> {
        match self.get("rc") {
            None => Ok(0),
            Some(_) => self.number("rc"),
        }
    }
}

/// A text of the other side that is fit to be shown.
pub(crate) fn shown(text: &str) -> String {
    text.chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Whether all of a message is printable ASCII: nothing else is PMI.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// How one protocol is written.
pub trait Dialect: fmt::Debug + Send {
    /// Which one it is.
    const KIND: Kind;
    /// What is asked before values can be put and taken, in this order.
    const OPENING: &'static [Request];
    /// Most bytes of one message, its frame included.
    const LONGEST: usize;

    /// What is known before anything was said.
    fn terms(rank: u32, size: u32, job: &str) -> Terms;

    /// The most text that one `Put` takes under this key.
    fn room(terms: &Terms, key: &str) -> usize;

    /// A question as bytes.
    fn write(terms: &Terms, request: &Request) -> Vec<u8>;

    /// Where the first message ends in `bytes`: the place of its text, and how many bytes it takes up. `None` while it is
    /// incomplete.
    ///
    /// # Errors
    /// Why this is no message.
    fn split(bytes: &[u8]) -> Result<Option<(std::ops::Range<usize>, usize)>, String>;

    /// The words of a message's text, which is printable ASCII.
    ///
    /// # Errors
    /// Why it has none.
    fn parse(text: &str) -> Result<Words, String>;

    /// The command that answers a question.
    fn answers(request: &Request) -> &'static str;

    /// What an answer to a question of the opening says.
    ///
    /// # Errors
    /// Why that cannot be.
    fn learn(terms: &mut Terms, request: &Request, words: &Words) -> Result<(), String>;

    /// Whether a `Get` that was answered without success means only that there is no such value.
    fn is_absent(words: &Words) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// So many steps of the opening have been answered.
    Opening(usize),
    Ready,
    Ended,
    Over,
}

/// One side of a conversation.
#[derive(Debug)]
pub struct Session<D> {
    terms: Terms,
    stage: Stage,
    asked: Option<Request>,
    bytes: Vec<u8>,
    dialect: std::marker::PhantomData<fn() -> D>,
}

impl<D: Dialect> Session<D> {
    /// The side of this rank, before anything was said.
    pub fn new(rank: u32, size: u32, job: &str) -> Self {
        Self {
            terms: D::terms(rank, size, job),
            stage: Stage::Opening(0),
            asked: None,
            bytes: Vec::new(),
            dialect: std::marker::PhantomData,
        }
    }

    /// What is known by now.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The next step of the opening; `None` when values can be put and taken.
    pub fn next_of_opening(&self) -> Option<&'static Request> {
        match self.stage {
            Stage::Opening(done) => D::OPENING.get(done),
            _ => None,
        }
    }

    /// Asks something: the bytes to be sent.
    ///
    /// # Errors
    /// [`LaunchError::State`] when it is not the time for it; then nothing has changed.
    pub fn ask(&mut self, request: Request) -> Result<Vec<u8>, LaunchError> {
        if let Some(why) = self.refusal(&request) {
            return Err(LaunchError::State {
                kind: D::KIND,
                step: request.step(),
                why,
            });
        }
        let bytes = D::write(&self.terms, &request);
        if let Request::Abort { .. } = request {
            self.stage = Stage::Over;
        } else {
            self.asked = Some(request);
        }
        Ok(bytes)
    }

    /// Why something cannot be asked now.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let aborts = matches!(request, Request::Abort { .. });
        match self.stage {
            Stage::Over => Some("after it has failed"),
            Stage::Ended => Some("after it was taken leave of"),
            // What cannot wait does not wait for an answer.
            Stage::Opening(done) if aborts && done > 0 => None,
            Stage::Ready if aborts => None,
            _ if self.asked.is_some() => Some("while it owes an answer"),
            Stage::Opening(done) if D::OPENING.get(done) == Some(request) => None,
            Stage::Opening(_) => Some("at this point of the beginning"),
            Stage::Ready if matches!(request, Request::Put { .. } | Request::Get { .. }) => None,
            Stage::Ready if matches!(request, Request::Fence | Request::Finalize) => None,
            Stage::Ready if matches!(request, Request::Spawn(_)) => None,
            Stage::Ready => Some("after the beginning"),
        }
    }

    /// Takes bytes of the other side, and gives the answer when they complete it.
    ///
    /// # Errors
    /// What is wrong with them, or what the launcher refuses; the session is over then.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Option<Answer>, LaunchError> {
        let taken = self.take_in(bytes);
        if taken.is_err() {
            self.over();
        }
        taken
    }

    /// The other side is not to be asked any more.
    pub fn over(&mut self) {
        self.stage = Stage::Over;
        self.asked = None;
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<Option<Answer>, LaunchError> {
        let Some(request) = &self.asked else {
            return Err(self.garbled("nothing", "it says something without being asked".to_owned()));
        };
        let step = request.step();
        self.bytes.extend_from_slice(bytes);
        let split = D::split(&self.bytes).map_err(|reason| self.garbled(step, reason))?;
        let Some((text, length)) = split else {
            if self.bytes.len() > D::LONGEST {
                let reason = format!("it does not end after {} bytes", D::LONGEST);
                return Err(self.garbled(step, reason));
            }
            return Ok(None);
        };
        if self.bytes.len() > length {
            return Err(self.garbled(step, "more comes behind it that nobody asked for".to_owned()));
        }
        let words = std::str::from_utf8(&self.bytes[text])
            .ok()
            .filter(|text| is_plain(text.as_bytes()))
            .ok_or_else(|| "it holds bytes that are no text".to_owned())
            .and_then(D::parse)
            .map_err(|reason| self.garbled(step, reason))?;
        self.bytes.clear();
        self.judge(&words).map(Some)
    }

    fn judge(&mut self, words: &Words) -> Result<Answer, LaunchError> {
        let Some(request) = self.asked.take() else {
            return Err(self.garbled("nothing", "it says something without being asked".to_owned()));
        };
        let step = request.step();
        let expected = D::answers(&request);
        if words.command != expected {
            let reason = format!("it says `{}` instead of `{expected}`", shown(&words.command));
            return Err(self.garbled(step, reason));
        }
        let code = words.rc().map_err(|reason| self.garbled(step, reason))?;
        if matches!(request, Request::Get { .. }) && D::is_absent(words) {
            return Ok(Answer::Absent);
        }
        if code != 0 {
            let said = ["msg", "errmsg"].into_iter().find_map(|name| words.get(name));
            if let Request::Spawn(_) = request {
                return Ok(Answer::Unspawned(shown(said.unwrap_or_default())));
            }
            return Err(LaunchError::Refused {
                kind: D::KIND,
                step,
                code,
                message: shown(said.unwrap_or_default()),
            });
        }
        match request {
            Request::Get { .. } => match words.get("value") {
                Some(value) => Ok(Answer::Value(value.to_owned())),
                None => Err(self.garbled(step, "it lacks `value`".to_owned())),
            },
            Request::Put { .. } | Request::Fence | Request::Abort { .. } | Request::Spawn(_) => {
                Ok(Answer::Done)
            }
            Request::Finalize => {
                self.stage = Stage::Ended;
                Ok(Answer::Done)
            }
            Request::Greet | Request::Join | Request::Limits | Request::Name => {
                let learnt = D::learn(&mut self.terms, &request, words);
                learnt.map_err(|reason| self.garbled(step, reason))?;
                if let Stage::Opening(done) = self.stage {
                    self.stage = match done + 1 {
                        done if done == D::OPENING.len() => Stage::Ready,
                        done => Stage::Opening(done),
                    };
                }
                Ok(Answer::Done)
            }
        }
    }

    fn garbled(&self, step: &'static str, reason: String) -> LaunchError {
        LaunchError::Garbled {
            kind: D::KIND,
            step,
            reason,
        }
    }
}

/// The version that the other side speaks has to be ours.
pub(super) fn version(words: &Words, ours: i64) -> Result<(), String> {
    match words.number("pmi_version")? {
        theirs if theirs == ours => Ok(()),
        theirs => Err(format!(
            "it speaks version {theirs} of PMI, and version {ours} was asked for"
        )),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
