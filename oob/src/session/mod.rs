//! An authenticated and encrypted session over a stream of bytes: the Noise protocol, sans I/O.
//!
//! ```text
//!   caller                                                       answerer
//!     │ head, Noise message 1 {our identity}        ──────────────►  │   proves the key, or is refused
//!     │  ◄──────────────        head, Noise message 2 {identity}  │   proves the key
//!   Ready                                                          │
//!     │ record: confirm                           ──────────────►  │   proves that message 1 is not a replay
//!     │                                                          Ready
//!     │ records: segments of messages               ◄─────────────►  │
//!     │ record: close                             ◄─────────────►  │   without it, the stream was cut
//! ```
//!
//! The pattern is `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`. NN, because the processes of a job have no
//! identities of their own: every process that has the job's key is a member. psk0, because then the key is
//! part of the first message already: a caller without it is rejected before the answerer has sent anything,
//! and learns nothing to try keys against. Two ephemeral keys give every session secrets of its own: a key
//! that leaks later does not decrypt recordings. The one weakness of psk0, replay of a recorded first
//! message, ends at the confirm record: the answerer is not `Ready` before a record that only the live caller
//! can seal. Version, purpose and whether there is a key are in the prologue; job, rank and incarnation of
//! both are in the encrypted payloads, so all are part of the hash that [`Session::binding`] returns.
//!
//! Without a key, a public constant takes its place. Such a session is used on loopback only, where it guards
//! against mistakes and not against other users of the host.
//!
//! A record's counter is its nonce: a repeated, dropped, reordered or changed record does not decrypt, and
//! ends the session. Every [`REKEY_EVERY`] records, both sides replace the key of that direction.

mod wire;

#[cfg(test)]
mod errors;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

use doorbell_fabric::time::Time;
use snow::{HandshakeState, TransportState};
use zeroize::{Zeroize, Zeroizing};

use self::wire::{CIPHERTEXT_MAX, HEAD, Head, Kind, PIECE_MAX, PREFIX, Piece, Refusal, SHAKE, TAG};
use crate::error::OobError;
use crate::key::JobKey;
use crate::name::Name;

/// The full name of the protocol, which is part of the handshake's hash.
const PROTOCOL: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The constant that replaces a missing key; it is no secret.
const NO_KEY: [u8; 32] = *b"doorbell: loopback without a key";
/// Records of one direction between two changes of its key.
pub const REKEY_EVERY: u64 = 1 << 16;
/// Maximum records of one direction in one session: far below the range of the cipher's counter.
pub const RECORDS_MAX: u64 = 1 << 48;
/// Maximum bytes that may wait to be sent, beyond one message of maximum length.
const SLACK: usize = 1 << 20;

/// The role of one side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connects and sends first.
    Caller,
    /// The side that accepts.
    Answerer,
}

/// The parameters of one side of a session.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The key of the job; without one, the session is for loopback.
    pub key: Option<JobKey>,
    /// The purpose of the session, which both sides must agree on.
    pub purpose: u16,
    /// The name of this process; rank 0 of job 0 if the session does not need it.
    pub name: Name,
    /// The incarnation of this process.
    pub incarnation: u64,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// Maximum length of a message in both directions (bytes).
    pub longest: usize,
}

impl Terms {
    /// Creates terms with the usual limits: ten seconds for a handshake, messages of at most 1 MiB.
    pub fn new(key: Option<JobKey>, purpose: u16, incarnation: u64) -> Self {
        Self {
            key,
            purpose,
            name: Name::new(0, 0),
            incarnation,
            handshake: Duration::from_secs(10),
            longest: 1 << 20,
        }
    }
}

/// The identity of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name of the process.
    pub name: Name,
    /// The incarnation of the process.
    pub incarnation: u64,
}

/// An event of a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The other side has proved that it has the key; messages may be sent.
    Ready(Peer),
    /// A message was received.
    Message(Vec<u8>),
    /// The other side has closed the session: nothing more will come.
    Closed,
}

/// One side of a session. Received bytes go into [`Session::receive`]; [`Session::outgoing`] are to be sent.
///
/// ```
/// use doorbell_fabric::time::Time;
/// use doorbell_oob::{Event, JobKey, Role, Session, Terms};
/// let key = JobKey::generate()?;
/// let now = Time::ZERO;
/// let mut caller = Session::new(Role::Caller, &Terms::new(Some(key.clone()), 1, 11), now)?;
/// let mut answerer = Session::new(Role::Answerer, &Terms::new(Some(key), 1, 22), now)?;
/// for _ in 0..2 {
///     answerer.receive(&caller.take_outgoing())?;
///     caller.receive(&answerer.take_outgoing())?;
/// }
/// assert!(matches!(caller.event(), Some(Event::Ready(peer)) if peer.incarnation == 22));
/// assert!(matches!(answerer.event(), Some(Event::Ready(peer)) if peer.incarnation == 11));
/// caller.send(b"hello")?;
/// answerer.receive(&caller.take_outgoing())?;
/// assert_eq!(answerer.event(), Some(Event::Message(b"hello".to_vec())));
/// # Ok::<(), doorbell_oob::OobError>(())
/// ```
pub struct Session {
    role: Role,
    state: State,
    keyed: bool,
    purpose: u16,
    name: Name,
    incarnation: u64,
    longest: usize,
    handshake: Duration,
    deadline: Option<Time>,
    /// Received bytes that are not processed yet: at most one handshake message or record.
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Segments of an incomplete message.
    partial: Vec<u8>,
    events: VecDeque<Event>,
    binding: [u8; 32],
    /// Whether we have closed our side.
    left: bool,
}

enum State {
    /// The answerer waits for the call.
    Called(Box<HandshakeState>),
    /// The caller waits for the answer.
    Calling(Box<HandshakeState>),
    /// The answerer waits for the proof that the caller is live.
    Proving(Box<Keys>, Peer),
    /// Messages may be sent and received.
    Open(Box<Keys>),
    /// The other side has closed; ours may still send.
    Closed(Box<Keys>),
    /// The session has failed.
    Failed,
}

/// The two ciphers, and how often each was used.
struct Keys {
    noise: TransportState,
    sealed: u64,
    opened: u64,
}

impl Session {
    /// Creates one side of a session; a caller has something to send at once.
    ///
    /// # Errors
    /// [`OobError::Random`].
    pub fn new(role: Role, terms: &Terms, now: Time) -> Result<Self, OobError> {
        let keyed = terms.key.is_some();
        let call = Head::of(Kind::Call, keyed, terms.purpose).bytes();
        let mut session = Self {
            role,
            state: State::Failed,
            keyed,
            purpose: terms.purpose,
            name: terms.name,
            incarnation: terms.incarnation,
            longest: terms.longest,
            handshake: terms.handshake,
            deadline: Some(now + terms.handshake),
            inbox: Vec::new(),
            outbox: Vec::new(),
            partial: Vec::new(),
            events: VecDeque::new(),
            binding: [0; 32],
            left: false,
        };
        let key = terms.key.as_ref().map_or(&NO_KEY, JobKey::expose);
        let noise = PROTOCOL
            .parse()
            .map(snow::Builder::new)
            .and_then(|builder| builder.prologue(&call)?.psk(0, key));
        let noise = noise.and_then(|builder| match role {
            Role::Caller => builder.build_initiator(),
            Role::Answerer => builder.build_responder(),
        });
        let mut noise = Box::new(noise.map_err(|error| OobError::Random(error.to_string()))?);
        session.state = match role {
            Role::Answerer => State::Called(noise),
            Role::Caller => {
                session.outbox.extend_from_slice(&call);
                session.shake(&mut noise)?;
                State::Calling(noise)
            }
        };
        Ok(session)
    }

    /// Takes received bytes, in any fragments. [`Session::event`] returns what they contained, also after an
    /// error: messages before the fault are valid.
    ///
    /// # Errors
    /// Why the session has failed. [`Session::outgoing`] then contains a message to the other side, which
    /// should be sent.
    pub fn receive(&mut self, mut bytes: &[u8]) -> Result<(), OobError> {
        loop {
            let wanted = self.wanted().inspect_err(|_| self.fail())?;
            let take = wanted.saturating_sub(self.inbox.len()).min(bytes.len());
            let (now, later) = bytes.split_at(take);
            self.inbox.extend_from_slice(now);
            bytes = later;
            if self.inbox.len() == wanted
                && wanted > 0
                && self.wanted().inspect_err(|_| self.fail())? == wanted
            {
                self.understand().inspect_err(|_| self.fail())?;
                continue;
            }
            if take == 0 {
                // Bytes after a close or a failure are ignored.
                return Ok(());
            }
        }
    }

    /// Returns the next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Seals a message; it is sent with [`Session::outgoing`].
    ///
    /// # Errors
    /// [`OobError::TooLong`]; [`OobError::Full`]; [`OobError::Exhausted`]; [`OobError::State`] when the
    /// session is not open.
    pub fn send(&mut self, message: &[u8]) -> Result<(), OobError> {
        self.send_parts(message, &[])
    }

    /// Seals a message in two parts, which are joined where they are encrypted, and nowhere before.
    ///
    /// # Errors
    /// The errors of [`Session::send`].
    pub fn send_parts(&mut self, head: &[u8], body: &[u8]) -> Result<(), OobError> {
        let length = head.len() + body.len();
        if length > self.longest {
            return Err(OobError::TooLong {
                length,
                limit: self.longest,
            });
        }
        if self.outbox.len() > self.longest + SLACK {
            return Err(OobError::Full {
                waiting: self.outbox.len(),
            });
        }
        if self.left {
            return Err(OobError::State("this side has closed the session"));
        }
        let (mut head, mut body) = (head, body);
        loop {
            let (first, later) = head.split_at(head.len().min(PIECE_MAX));
            let (second, last) = body.split_at(body.len().min(PIECE_MAX - first.len()));
            let over = later.is_empty() && last.is_empty();
            self.seal(if over { Piece::Last } else { Piece::More }, [first, second])?;
            (head, body) = (later, last);
            if over {
                return Ok(());
            }
        }
    }

    /// Closes our side: the other side learns that nothing more comes. Without effect when the session is not
    /// open.
    pub fn close(&mut self) {
        if !std::mem::replace(&mut self.left, true) {
            let _ = self.seal(Piece::Close, [&[]; 2]);
        }
    }

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// Unless the other side had closed the session: [`OobError::Truncated`], or [`OobError::Unanswered`] in
    /// the handshake.
    pub fn end(&mut self) -> Result<(), OobError> {
        match self.state {
            State::Closed(_) => Ok(()),
            State::Open(_) => {
                self.fail();
                Err(OobError::Truncated)
            }
            _ => {
                self.fail();
                Err(OobError::Unanswered)
            }
        }
    }

    /// Returns the bytes to be sent.
    pub fn outgoing(&self) -> &[u8] {
        &self.outbox
    }

    /// Removes `count` bytes of [`Session::outgoing`], which were sent.
    pub fn sent(&mut self, count: usize) {
        self.outbox.drain(..count.min(self.outbox.len()));
    }

    /// Takes all bytes to be sent.
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns when [`Session::tick`] is due; `None` after the handshake.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// Checks the time limit of the handshake.
    ///
    /// # Errors
    /// [`OobError::HandshakeLate`].
    pub fn tick(&mut self, now: Time) -> Result<(), OobError> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.fail();
            return Err(OobError::HandshakeLate {
                limit: self.handshake,
            });
        }
        Ok(())
    }

    /// Whether the other side has closed the session: nothing more will come.
    pub fn is_left(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// Returns the role of this side.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether messages can be sent.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_)) && !self.left
    }

    /// Returns a hash of the whole handshake: the same at both ends of this session, and in no other. Zero
    /// before the end of the handshake.
    pub fn binding(&self) -> [u8; 32] {
        self.binding
    }

    #[cold]
    fn fail(&mut self) {
        self.state = State::Failed;
        self.deadline = None;
        self.inbox.clear();
        self.partial.zeroize();
    }

    /// Returns the number of bytes needed for the next unit that can be processed, as far as it is known;
    /// zero when nothing more is expected.
    fn wanted(&self) -> Result<usize, OobError> {
        match &self.state {
            State::Called(_) | State::Calling(_) => {
                if !Head::may_begin(&self.inbox) {
                    return Err(OobError::Stranger {
                        what: "wrong magic number",
                    });
                }
                match self.inbox.first_chunk() {
                    None => Ok(HEAD),
                    Some(head) => Head::parse(head).map(|head| HEAD + usize::from(head.follows())),
                }
            }
            State::Proving(keys, _) | State::Open(keys) => match self.inbox.first_chunk::<PREFIX>() {
                None => Ok(PREFIX),
                Some(prefix) => match usize::from(u16::from_le_bytes(*prefix)) {
                    // A tag, and at least the type of the segment.
                    0..=TAG => Err(OobError::Forged { record: keys.opened }),
                    length => Ok(PREFIX + length),
                },
            },
            State::Closed(_) | State::Failed => Ok(0),
        }
    }

    /// Processes the inbox, which holds exactly one head with what follows it, or one record.
    fn understand(&mut self) -> Result<(), OobError> {
        match std::mem::replace(&mut self.state, State::Failed) {
            State::Called(noise) => self.answer(noise),
            State::Calling(noise) => self.answered(noise),
            State::Proving(keys, peer) => self.prove(keys, peer),
            State::Open(keys) => self.record(keys),
            other @ (State::Closed(_) | State::Failed) => {
                self.state = other;
                Ok(())
            }
        }
    }

    /// Parses the head in the inbox, and checks that both sides agree about the session.
    fn head(&self) -> Result<Head, OobError> {
        let head = self.inbox.first_chunk().ok_or(OobError::Unanswered)?;
        let head = Head::parse(head)?;
        let mine = (wire::VERSION, self.keyed, self.purpose);
        if head.version != mine.0 {
            return Err(OobError::Version {
                ours: mine.0,
                theirs: head.version,
            });
        }
        match head.kind {
            Kind::Refuse(Refusal::Key) => return Err(OobError::WrongKey),
            Kind::Refuse(Refusal::Version) => {
                return Err(OobError::Stranger {
                    what: "it refused a version that it speaks",
                });
            }
            _ => {}
        }
        if head.keyed != mine.1 {
            return Err(OobError::KeyMissing { here: self.keyed });
        }
        if head.purpose != mine.2 {
            return Err(OobError::Purpose {
                ours: self.purpose,
                theirs: head.purpose,
            });
        }
        Ok(head)
    }

    /// Handles the call, as the answerer.
    fn answer(&mut self, mut noise: Box<HandshakeState>) -> Result<(), OobError> {
        let refuse = |session: &mut Self, refusal| {
            let head = Head::of(Kind::Refuse(refusal), session.keyed, session.purpose);
            session.outbox.extend_from_slice(&head.bytes());
        };
        match self.head() {
            Ok(Head { kind: Kind::Call, .. }) => {}
            Ok(_) => {
                return Err(OobError::Stranger {
                    what: "it sent an answer without a call",
                });
            }
            Err(error) => {
                match error {
                    OobError::Version { .. } => refuse(self, Refusal::Version),
                    OobError::KeyMissing { .. } => refuse(self, Refusal::Keyed),
                    OobError::Purpose { .. } => refuse(self, Refusal::Purpose),
                    _ => {}
                }
                return Err(error);
            }
        }
        let Some(peer) = self.read_handshake(&mut noise) else {
            refuse(self, Refusal::Key);
            return Err(OobError::WrongKey);
        };
        let head = Head::of(Kind::Answer, self.keyed, self.purpose);
        self.outbox.extend_from_slice(&head.bytes());
        self.shake(&mut noise)?;
        let keys = self.keys(*noise)?;
        self.state = State::Proving(keys, peer);
        Ok(())
    }

    /// Handles the answer, as the caller.
    fn answered(&mut self, mut noise: Box<HandshakeState>) -> Result<(), OobError> {
        match self.head()?.kind {
            Kind::Answer => {}
            _ => {
                return Err(OobError::Stranger {
                    what: "it sent a call instead of an answer",
                });
            }
        }
        let peer = self.read_handshake(&mut noise).ok_or(OobError::WrongKey)?;
        let keys = self.keys(*noise)?;
        self.state = State::Open(keys);
        self.seal(Piece::Confirm, [&[]; 2])?;
        self.ready(peer);
        Ok(())
    }

    /// Handles the first record, as the answerer.
    fn prove(&mut self, mut keys: Box<Keys>, peer: Peer) -> Result<(), OobError> {
        let record = keys.opened;
        let plain = keys.open(self.record_body())?;
        self.inbox.clear();
        if plain[..] != [Piece::Confirm.number()] {
            return Err(OobError::Forged { record });
        }
        self.state = State::Open(keys);
        self.ready(peer);
        Ok(())
    }

    fn ready(&mut self, peer: Peer) {
        self.deadline = None;
        self.events.push_back(Event::Ready(peer));
    }

    /// Handles a record of an open session.
    fn record(&mut self, mut keys: Box<Keys>) -> Result<(), OobError> {
        let record = keys.opened;
        let plain = keys.open(self.record_body())?;
        self.inbox.clear();
        let Some((&kind, piece)) = plain.split_first() else {
            return Err(OobError::Forged { record });
        };
        let length = self.partial.len() + piece.len();
        if length > self.longest {
            return Err(OobError::TooLong {
                length,
                limit: self.longest,
            });
        }
        match Piece::of(kind) {
            Some(Piece::More) if !piece.is_empty() => self.partial.extend_from_slice(piece),
            Some(Piece::Last) => {
                self.partial.extend_from_slice(piece);
                let message = std::mem::take(&mut self.partial);
                self.events.push_back(Event::Message(message));
            }
            Some(Piece::Close) if length == 0 => {
                self.events.push_back(Event::Closed);
                self.state = State::Closed(keys);
                return Ok(());
            }
            _ => return Err(OobError::Forged { record }),
        }
        self.state = State::Open(keys);
        Ok(())
    }

    fn record_body(&self) -> &[u8] {
        self.inbox.get(PREFIX..).unwrap_or_default()
    }

    /// Reads the other side's handshake message in the inbox; returns its identity if it has the key.
    fn read_handshake(&mut self, noise: &mut HandshakeState) -> Option<Peer> {
        let mut payload = [0; SHAKE];
        let length = noise.read_message(self.inbox.get(HEAD..)?, &mut payload).ok()?;
        self.inbox.clear();
        wire::read_payload(payload.get(..length)?)
    }

    /// Writes our handshake message.
    fn shake(&mut self, noise: &mut HandshakeState) -> Result<(), OobError> {
        let mut message = [0; SHAKE];
        let length = noise
            .write_message(&wire::payload(self.name, self.incarnation), &mut message)
            .map_err(|error| OobError::Random(error.to_string()))?;
        self.outbox.extend_from_slice(&message[..length]);
        Ok(())
    }

    fn keys(&mut self, noise: HandshakeState) -> Result<Box<Keys>, OobError> {
        if let Ok(hash) = noise.get_handshake_hash().try_into() {
            self.binding = hash;
        }
        let noise = noise
            .into_transport_mode()
            .map_err(|_| OobError::State("the handshake is not complete"))?;
        Ok(Box::new(Keys {
            noise,
            sealed: 0,
            opened: 0,
        }))
    }

    fn seal(&mut self, kind: Piece, parts: [&[u8]; 2]) -> Result<(), OobError> {
        let (State::Open(keys) | State::Closed(keys)) = &mut self.state else {
            return Err(OobError::State("the session is not open"));
        };
        keys.seal(kind, parts, &mut self.outbox)
    }
}

impl Keys {
    fn seal(&mut self, kind: Piece, parts: [&[u8]; 2], out: &mut Vec<u8>) -> Result<(), OobError> {
        if self.sealed >= RECORDS_MAX {
            return Err(OobError::Exhausted);
        }
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut plain = Zeroizing::new(Vec::with_capacity(1 + length));
        plain.push(kind.number());
        parts.iter().for_each(|part| plain.extend_from_slice(part));
        let length = plain.len() + TAG;
        let prefix = u16::try_from(length).map_err(|_| OobError::TooLong {
            length,
            limit: CIPHERTEXT_MAX,
        })?;
        let at = out.len() + PREFIX;
        out.extend_from_slice(&prefix.to_le_bytes());
        out.resize(at + length, 0);
        if self.noise.write_message(&plain, &mut out[at..]) != Ok(length) {
            out.truncate(at - PREFIX);
            return Err(OobError::Exhausted);
        }
        self.sealed += 1;
        if self.sealed.is_multiple_of(REKEY_EVERY) {
            self.noise.rekey_outgoing();
        }
        Ok(())
    }

    fn open(&mut self, body: &[u8]) -> Result<Zeroizing<Vec<u8>>, OobError> {
        if self.opened >= RECORDS_MAX {
            return Err(OobError::Exhausted);
        }
        let mut plain = Zeroizing::new(vec![0; body.len()]);
        let length = self
            .noise
            .read_message(body, &mut plain)
            .map_err(|_| OobError::Forged { record: self.opened })?;
        plain.truncate(length);
        self.opened += 1;
        if self.opened.is_multiple_of(REKEY_EVERY) {
            self.noise.rekey_incoming();
        }
        Ok(plain)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match self.state {
            State::Called(_) => "waits for a call",
            State::Calling(_) => "waits for the answer",
            State::Proving(..) => "waits for the proof",
            State::Open(_) => "open",
            State::Closed(_) => "closed",
            State::Failed => "over",
        };
        write!(out, "Session({state})")
    }
}
