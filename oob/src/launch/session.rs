//! One side of a PMI conversation, sans I/O: which requests are valid when, and what counts as an answer.
//!
//! ```text
//!              send Greet           the dialect's own steps           send Finalize
//!   Silent ───────────────► Opening ───────────────────────► Ready ───────────────► Ended
//!                                                             │  ▲
//!                                              Put, Fence, Get└──┘
//!   any error, and Abort ──────────────────────────────────────────────────────────► Over
//! ```
//!
//! One request is in flight at a time. Bytes arrive in any fragments. A [`Dialect`] defines how a request is
//! encoded, where an answer ends, and how it is split into words. Input is untrusted: answers have a bounded
//! length and number of words, each word occurs once, and required words are present.

use std::fmt;

use super::{Kind, LaunchError};

/// Maximum number of words in an answer.
const MOST_WORDS: usize = 64;
/// Maximum characters of a launcher's text that are shown.
const SHOWN: usize = 120;

/// A request to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The protocol version.
    Greet,
    /// The identity of this process (PMI-2).
    Join,
    /// The maximum lengths of keys and values (PMI-1).
    Limits,
    /// The name of the job.
    Name,
    /// A value for the other ranks.
    Put {
        /// The key of the value.
        key: String,
        /// The text of the value.
        value: String,
    },
    /// Wait for all ranks.
    Fence,
    /// A value of another rank.
    Get {
        /// The key of the value.
        key: String,
    },
    /// Start more processes.
    Spawn(Box<Program>),
    /// End the job; it has no answer.
    Abort {
        /// The exit status of the job.
        code: u8,
        /// The reason, in printable ASCII.
        text: String,
    },
    /// Regular end of this process.
    Finalize,
}

/// Processes to be started, as a PMI encodes them. All texts are printable ASCII.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The program to run.
    pub name: String,
    /// The arguments of the program.
    pub args: Vec<String>,
    /// The number of processes.
    pub ranks: u32,
    /// Values that the processes have from the start.
    pub values: Vec<(String, String)>,
    /// Further information for the launcher: `host`, `wdir`.
    pub infos: Vec<(String, String)>,
}

impl Request {
    /// Returns the name of the request in errors.
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

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was carried out.
    Done,
    /// The value that was requested.
    Value(String),
    /// There is no such value.
    Absent,
    /// No processes are started; the launcher's reason, which may be empty.
    Unspawned(String),
}

/// What both sides have agreed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The rank of this process.
    pub rank: u32,
    /// The size of the job.
    pub size: u32,
    /// The launcher's name for the job.
    pub job: String,
    /// Maximum bytes of a key.
    pub key: usize,
    /// Maximum bytes of a value.
    pub value: usize,
}

/// One message of the other side: its command, and the words after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// The command of the message.
    pub command: String,
    words: Vec<(String, String)>,
}

impl Words {
    /// Collects the words of a message in order; the first has to be its command.
    ///
    /// # Errors
    /// When the message is malformed.
    pub fn new(words: Vec<(String, String)>) -> Result<Self, String> {
        if words.len() > MOST_WORDS {
            return Err(format!("it has more than {MOST_WORDS} words"));
        }
        for (at, (name, _)) in words.iter().enumerate() {
            if words[..at].iter().any(|(earlier, _)| earlier == name) {
                return Err(format!("`{}` occurs in it twice", shown(name)));
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

    /// Returns a word, if it is present.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.words.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// Returns a word that is a number.
    ///
    /// # Errors
    /// When it is missing or not a number.
    pub fn number(&self, name: &str) -> Result<i64, String> {
        let text = self.get(name).ok_or_else(|| format!("it lacks `{name}`"))?;
        let number = text.parse();
        number.map_err(|_| format!("its `{name}` is `{}`, which is not a number", shown(text)))
    }

    /// Returns the return code: 0 if there is none.
    ///
    /// # Errors
    /// When it is not a number.
    pub fn rc(&self) -> Result<i64, String> {
        match self.get("rc") {
            None => Ok(0),
            Some(_) => self.number("rc"),
        }
    }
}

/// Returns a text of the other side in printable form.
pub(crate) fn shown(text: &str) -> String {
    text.chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Whether all of a message is printable ASCII, as PMI requires.
pub(crate) fn is_plain(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// The encoding of one protocol.
pub trait Dialect: fmt::Debug + Send {
    /// The kind of launcher that uses it.
    const KIND: Kind;
    /// The requests of the opening, in order.
    const OPENING: &'static [Request];
    /// Maximum bytes of a message, its frame included.
    const LONGEST: usize;

    /// Returns what is known before the first message.
    fn terms(rank: u32, size: u32, job: &str) -> Terms;

    /// Returns the maximum text of one `Put` with this key.
    fn room(terms: &Terms, key: &str) -> usize;

    /// Encodes a request.
    fn write(terms: &Terms, request: &Request) -> Vec<u8>;

    /// Finds the end of the first message in `bytes`: the range of its text, and the number of bytes it
    /// takes. `None` while it is incomplete.
    ///
    /// # Errors
    /// When it is malformed.
    fn split(bytes: &[u8]) -> Result<Option<(std::ops::Range<usize>, usize)>, String>;

    /// Splits the text of a message, which is printable ASCII, into words.
    ///
    /// # Errors
    /// When it is malformed.
    fn parse(text: &str) -> Result<Words, String>;

    /// Returns the command of the answer to a request.
    fn answers(request: &Request) -> &'static str;

    /// Takes over the content of an answer of the opening.
    ///
    /// # Errors
    /// When the content is invalid.
    fn learn(terms: &mut Terms, request: &Request, words: &Words) -> Result<(), String>;

    /// Whether a failed `Get` means only that there is no such value.
    fn is_absent(words: &Words) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The number of steps of the opening that have been answered.
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
    /// Creates the side of this rank, before the first message.
    pub fn new(rank: u32, size: u32, job: &str) -> Self {
        Self {
            terms: D::terms(rank, size, job),
            stage: Stage::Opening(0),
            asked: None,
            bytes: Vec::new(),
            dialect: std::marker::PhantomData,
        }
    }

    /// Returns what is known so far.
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Returns the next request of the opening; `None` when it is complete.
    pub fn next_of_opening(&self) -> Option<&'static Request> {
        match self.stage {
            Stage::Opening(done) => D::OPENING.get(done),
            _ => None,
        }
    }

    /// Sends a request: returns its bytes.
    ///
    /// # Errors
    /// [`LaunchError::State`] when it is not valid now; then nothing has changed.
    pub fn request(&mut self, request: Request) -> Result<Vec<u8>, LaunchError> {
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

    /// Returns why a request is not valid now.
    fn refusal(&self, request: &Request) -> Option<&'static str> {
        let aborts = matches!(request, Request::Abort { .. });
        match self.stage {
            Stage::Over => Some("after a failure"),
            Stage::Ended => Some("after finalize"),
            // An abort does not wait for an answer.
            Stage::Opening(done) if aborts && done > 0 => None,
            Stage::Ready if aborts => None,
            _ if self.asked.is_some() => Some("while another request is open"),
            Stage::Opening(done) if D::OPENING.get(done) == Some(request) => None,
            Stage::Opening(_) => Some("at this point of the opening"),
            Stage::Ready if matches!(request, Request::Put { .. } | Request::Get { .. }) => None,
            Stage::Ready if matches!(request, Request::Fence | Request::Finalize) => None,
            Stage::Ready if matches!(request, Request::Spawn(_)) => None,
            Stage::Ready => Some("after the opening"),
        }
    }

    /// Takes received bytes, and returns the answer once it is complete.
    ///
    /// # Errors
    /// When they are malformed, or the launcher refuses; the session has ended then.
    pub fn take(&mut self, bytes: &[u8]) -> Result<Option<Answer>, LaunchError> {
        let taken = self.take_in(bytes);
        if taken.is_err() {
            self.over();
        }
        taken
    }

    /// Marks the session as failed.
    pub fn over(&mut self) {
        self.stage = Stage::Over;
        self.asked = None;
    }

    fn take_in(&mut self, bytes: &[u8]) -> Result<Option<Answer>, LaunchError> {
        let Some(request) = &self.asked else {
            return Err(self.garbled("nothing", "it sends a message without a request".to_owned()));
        };
        let step = request.step();
        self.bytes.extend_from_slice(bytes);
        let split = D::split(&self.bytes).map_err(|reason| self.garbled(step, reason))?;
        let Some((text, length)) = split else {
            if self.bytes.len() > D::LONGEST {
                let reason = format!("it has more than {} bytes", D::LONGEST);
                return Err(self.garbled(step, reason));
            }
            return Ok(None);
        };
        if self.bytes.len() > length {
            return Err(self.garbled(step, "further data follows it".to_owned()));
        }
        let words = std::str::from_utf8(&self.bytes[text])
            .ok()
            .filter(|text| is_plain(text.as_bytes()))
            .ok_or_else(|| "it has bytes other than printable ASCII".to_owned())
            .and_then(D::parse)
            .map_err(|reason| self.garbled(step, reason))?;
        self.bytes.clear();
        self.judge(&words).map(Some)
    }

    fn judge(&mut self, words: &Words) -> Result<Answer, LaunchError> {
        let Some(request) = self.asked.take() else {
            return Err(self.garbled("nothing", "it sends a message without a request".to_owned()));
        };
        let step = request.step();
        let expected = D::answers(&request);
        if words.command != expected {
            let reason = format!(
                "it has the command `{}` instead of `{expected}`",
                shown(&words.command)
            );
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

/// Checks that the other side uses our version.
pub(super) fn version(words: &Words, ours: i64) -> Result<(), String> {
    match words.number("pmi_version")? {
        theirs if theirs == ours => Ok(()),
        theirs => Err(format!(
            "it speaks PMI version {theirs}, but version {ours} was requested"
        )),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
