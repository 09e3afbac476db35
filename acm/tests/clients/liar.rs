//! A service that violates the protocol: our clients end with one sentence, whatever it sends.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use doorbell_acm::client::{AsyncClient, Client, ClientError, Service};
use doorbell_acm::query::{CounterScope, Question};
use doorbell_acm::wire::write_question;

use crate::common::{LONG, v4};

/// Answers every client's first question with these bytes, and goes.
fn liar(socket: &Path, says: Vec<u8>) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream: UnixStream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(&says);
        }
    });
}

fn question() -> Question {
    Question::Resolve {
        source: None,
        destination: v4(7),
        no_delay: false,
    }
}

/// What both clients make of it.
fn errors(says: Vec<u8>) -> [ClientError; 2] {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("liar");
    liar(&socket, says);
    let service = Service::Unix(socket);
    let mut client = Client::connect(&service, LONG).unwrap();
    let one = client.query(&question()).unwrap_err();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let other = runtime.unwrap().block_on(async {
        let asker = AsyncClient::connect(&service, LONG).await.unwrap();
        asker.query(question()).await.unwrap_err()
    });
    [one, other]
}

#[test]
fn an_invalid_answer_of_a_service_is_an_error() {
    let answer = |status: u8| {
        let mut bytes = write_question(&Question::Counters(CounterScope::Service), 1);
        let length = 16u16.to_ne_bytes();
        bytes[1..3].copy_from_slice(&[0x81, status]);
        bytes[6..8].copy_from_slice(&length);
        bytes
    };
    let mut endless = answer(0);
    endless[6..8].copy_from_slice(&3u16.to_ne_bytes());
    let counters = {
        let mut bytes = answer(0);
        bytes[1] = 0x82;
        bytes[6..8].copy_from_slice(&16u16.to_be_bytes());
        bytes
    };
    let lies = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        write_question(&question(), 1),
        answer(0),
        answer(4),
        answer(200),
        endless,
        counters,
    ];
    for says in lies {
        for error in errors(says.clone()) {
            assert!(matches!(error, ClientError::Wrong { .. }), "{says:?}: {error}");
            assert!(!error.to_string().contains(char::is_control));
        }
    }
}

#[test]
fn a_service_that_closes_in_the_middle_is_an_error() {
    for says in [Vec::new(), write_question(&question(), 1)[..5].to_vec()] {
        for error in errors(says) {
            assert!(matches!(error, ClientError::Closed { .. }), "{error}");
        }
    }
}

#[test]
fn a_service_that_accepts_no_client_is_late() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("deaf");
    let _deaf = UnixListener::bind(&socket).unwrap();
    let service = Service::Unix(socket);
    let mut client = Client::connect(&service, Duration::from_millis(50)).unwrap();
    let error = client.endpoints().unwrap_err();
    assert!(matches!(error, ClientError::Late { .. }), "{error}");
}
