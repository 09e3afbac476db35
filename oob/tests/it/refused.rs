//! Those who have the key and still do not belong here: another version, another job. Both sides know why.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use doorbell_fabric::time::Time;
use doorbell_oob::connect::{HELLO, Hello, HelloKind, Limits, Nack};
use doorbell_oob::lines::tcp::{Chosen, Families, Settings};
use doorbell_oob::lines::{self, Who};
use doorbell_oob::name::{Epoch, Name};
use doorbell_oob::runner::Carrier;
use doorbell_oob::transport::Refusal;
use doorbell_oob::{Event, Role, Session, Terms};

use crate::side::{JOB, PATIENCE, Side, drive, key, runtime, who};

/// What sessions of the control plane are for.
const PURPOSE: u16 = 2;
/// The version of the protocol inside them.
const VERSION: u32 = 1;

/// Settings under which no peer is refused for being slow.
fn settings() -> Settings {
    Settings {
        nics: Chosen::new(Vec::new(), Vec::new(), Families::V4).unwrap(),
        limits: lines::Limits {
            handshake: PATIENCE,
            linger: PATIENCE,
            meeting: Limits {
                hello: PATIENCE,
                ..Limits::default()
            },
            ..lines::Limits::default()
        },
        ..Settings::default()
    }
}

fn at(side: &Side) -> SocketAddr {
    side.addresses()[0].replace("/8", "").parse().unwrap()
}

/// A process that is made by hand, at the other end of a socket.
struct Hand {
    socket: TcpStream,
    session: Session,
}

impl Hand {
    fn new(socket: TcpStream, role: Role, name: Name) -> Self {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let terms = Terms {
            name,
            handshake: PATIENCE,
            ..Terms::new(key(7), PURPOSE, 5)
        };
        let session = Session::new(role, &terms, Time::ZERO).unwrap();
        Self { socket, session }
    }

    fn flush(&mut self) {
        self.socket.write_all(&self.session.take_outgoing()).unwrap();
    }

    /// Waits for the next event of the session.
    fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.session.event() {
                return event;
            }
            self.flush();
            let mut buffer = [0; 4096];
            let count = self.socket.read(&mut buffer).unwrap();
            assert!(count > 0, "the other side has left");
            self.session.receive(&buffer[..count]).unwrap();
        }
    }

    fn hello(&mut self) -> Hello {
        let Event::Message(bytes) = self.event() else {
            panic!("no message")
        };
        assert_eq!(bytes.len(), HELLO);
        Hello::read(&bytes).unwrap()
    }

    fn say(&mut self, hello: &Hello) {
        self.session.send(&hello.bytes()).unwrap();
        self.flush();
    }
}

/// Runs `hand` on a thread beside the side, until it has returned and the side is `done`.
async fn beside<T: Send + 'static>(
    side: &mut Side,
    hand: impl FnOnce() -> T + Send + 'static,
    mut done: impl FnMut(&mut Side) -> bool,
) -> T {
    let thread = std::thread::spawn(hand);
    drive(&mut [side], "both are through", |sides| {
        thread.is_finished() && done(sides[0])
    })
    .await;
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[test]
fn a_caller_of_another_version_is_refused_as_such() {
    runtime().block_on(async {
        let mut side = Side::start(settings(), who(1));
        let (to, name) = (at(&side), Name::new(JOB, 9));
        let call = Hello {
            version: VERSION + 1,
            said: HelloKind::Call,
            from: name,
            epoch: Epoch(5),
            to: side.name,
            nonce: 1,
            heard: 0,
        };
        let caller = move || {
            let mut hand = Hand::new(TcpStream::connect(to).unwrap(), Role::Caller, name);
            assert!(matches!(hand.event(), Event::Ready(_)));
            hand.say(&call);
            hand.hello()
        };
        let answer = beside(&mut side, caller, |side| side.tcp.is_quiet()).await;
        assert_eq!(
            (answer.said, answer.version),
            (HelloKind::Nack(Nack::Version), VERSION)
        );
        assert_eq!(side.tcp.counters().meeting.nacks, 1);
        assert!(side.links.is_empty());
    });
}

#[test]
fn an_answerer_of_another_version_is_left() {
    runtime().block_on(async {
        let mut settings = settings();
        settings.limits.meeting.tries = 1;
        let mut side = Side::start(settings, who(1));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("127.0.0.1/8:{}", listener.local_addr().unwrap().port());
        let name = Name::new(JOB, 9);
        let attempt = side.call(name, vec![address.as_str().into()]);
        let answerer = move || {
            let (socket, _) = listener.accept().unwrap();
            let mut hand = Hand::new(socket, Role::Answerer, name);
            assert!(matches!(hand.event(), Event::Ready(_)));
            let call = hand.hello();
            hand.say(&Hello {
                version: VERSION + 1,
                said: HelloKind::Nack(Nack::Version),
                from: name,
                epoch: Epoch(5),
                to: call.from,
                ..call
            });
            let _ = hand.socket.read_to_end(&mut Vec::new());
            call
        };
        let call = beside(&mut side, answerer, |side| side.open.is_empty()).await;
        assert_eq!(
            (call.said, call.version, call.to),
            (HelloKind::Call, VERSION, name)
        );
        assert_eq!(side.refused, [(attempt, Refusal::WrongVersion)]);
    });
}

#[test]
fn another_version_of_the_session_is_refused_in_its_first_message() {
    runtime().block_on(async {
        let mut side = Side::start(settings(), who(1));
        let to = at(&side);
        let stranger = move || {
            let mut hand = Hand::new(TcpStream::connect(to).unwrap(), Role::Caller, Name::new(JOB, 9));
            let mut head = hand.session.take_outgoing();
            // Its low byte: the magic has eight.
            head[8] += 1;
            hand.socket.write_all(&head).unwrap();
            let mut answer = Vec::new();
            let _ = hand.socket.read_to_end(&mut answer);
            (head, answer)
        };
        let (head, answer) = beside(&mut side, stranger, |side| side.tcp.is_quiet()).await;
        // The magic; the version that is spoken here; that another one is refused.
        assert_eq!(
            answer[..11],
            [b"bell-oob".as_slice(), &[head[8] - 1, 0, 16]].concat()
        );
        assert_eq!(side.tcp.counters().wrong_version, 1);
    });
}

/// A caller of a process of another job does not get this one, with the same rank and the same key.
#[test]
fn another_job_with_the_same_key_is_not_taken_for_this_one() {
    runtime().block_on(async {
        let mut two = Side::start(settings(), who(1));
        let stranger = Who {
            name: Name::new(JOB + 1, 0),
            ..who(0)
        };
        let mut one = Side::start(settings(), stranger);
        let attempt = one.call(Name::new(JOB + 1, 1), two.addresses());
        drive(&mut [&mut one, &mut two], "a refusal", |sides| {
            !sides[0].refused.is_empty()
        })
        .await;
        assert_eq!(one.refused, [(attempt, Refusal::WrongName)]);
        assert!(one.links.is_empty() && two.links.is_empty());
        assert!(two.tcp.counters().meeting.nacks >= 1, "{:?}", two.tcp.counters());
    });
}
