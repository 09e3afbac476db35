//! The messages between a client and a service of address resolution, in both directions: whatever the pieces
//! in which they come, they are the same messages or the same fault; what is understood is written as it was
//! read; every malformed question has its status; nothing that a service sends can be a terminal's command.

use doorbell_acm::address::Address;
use doorbell_acm::path::{Path, PathRecord};
use doorbell_acm::query::{CounterScope, Found, Question};
use doorbell_acm::status::Status;
use doorbell_acm::wire::{
    ANSWER_MAX, BadMessage, Decoder, QUESTION_MAX, Rejected, Response, read_question, read_response, tid_of,
    write_answer, write_question,
};

/// Reads the input as what a client sends, or as what a service answers.
pub fn run(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let (most, step) = match choice & 1 {
        0 => (QUESTION_MAX, usize::from(choice >> 1).max(1)),
        _ => (ANSWER_MAX, usize::from(choice >> 4).max(1)),
    };
    let at_once = split(bytes, bytes.len().max(1), most);
    assert_eq!(at_once, split(bytes, step, most));
    let (messages, _) = at_once;
    assert!(
        messages
            .iter()
            .all(|message| (16..=most).contains(&message.len()))
    );
    for message in &messages {
        match choice & 1 {
            0 => asked(message),
            _ => answered(&asks(choice >> 1 & 7), message),
        }
    }
}

/// All messages of a stream that comes in pieces of `step` bytes, and what ended it.
fn split(bytes: &[u8], step: usize, most: usize) -> (Vec<Vec<u8>>, Option<BadMessage>) {
    let (mut decoder, mut messages) = (Decoder::new(most), Vec::new());
    for piece in bytes.chunks(step) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(bad) => {
                    assert_eq!(decoder.next(), Err(bad), "it goes on after a fault");
                    return (messages, Some(bad));
                }
            }
        }
    }
    (messages, None)
}

/// One message to the service.
fn asked(message: &[u8]) {
    match read_question(message) {
        Ok((head, asks)) => {
            let bytes = write_question(&asks, head.tid());
            assert!(bytes.len() <= QUESTION_MAX);
            let (again, same) = read_question(&bytes).expect("it was understood before");
            assert_eq!((again.tid(), again.op(), &same), (head.tid(), head.op(), &asks));
            for status in Status::ALL {
                let refusal = write_answer(&head, &Err(status));
                assert_eq!(read_response(&asks, head.tid(), &refusal), Ok(Err(status)));
            }
            let path = some_path(&asks);
            let source = source_of(&asks);
            let found = write_answer(
                &head,
                &Ok(Found::Path {
                    path: Box::new(path.clone()),
                    source: source.clone(),
                }),
            );
            let heard = read_response(&asks, head.tid(), &found);
            match asks {
                Question::Resolve { .. } => {
                    let path = Box::new(path);
                    assert_eq!(heard, Ok(Ok(Response::Path { path, source })));
                }
                Question::Path { .. } => assert!(matches!(heard, Ok(Ok(Response::Path { .. })))),
                _ => assert_eq!(heard, Ok(Err(Status::Invalid))),
            }
        }
        Err(Rejected::Answer(head, status)) => {
            let refusal = write_answer(&head, &Err(status));
            assert_eq!((refusal.len(), refusal[2]), (16, status.code()));
            assert_eq!(tid_of(&refusal), Ok(head.tid()));
        }
        Err(Rejected::Drop(bad)) => panic!("a whole message, and yet {bad}"),
    }
}

/// A path that the client itself wrote, where it wrote one.
fn some_path(question: &Question) -> Path {
    match question {
        Question::Path { path, .. } => path.clone(),
        _ => Path::default(),
    }
}

fn source_of(question: &Question) -> Option<Address> {
    match question {
        Question::Resolve { source, .. } => source.clone(),
        _ => None,
    }
}

/// Returns a question that a client may have sent.
fn asks(choice: u8) -> Question {
    match choice {
        0 | 1 => Question::Resolve {
            source: None,
            destination: Address::V4([10, 0, 0, 1].into()),
            no_delay: choice == 1,
        },
        2 | 3 => Question::Path {
            path: Path::default(),
            verify: choice == 3,
        },
        4 => Question::Counters(CounterScope::Service),
        5 => Question::Counters(CounterScope::Index(1)),
        _ => Question::Endpoint { port: 1, index: 1 },
    }
}

/// One message to a client.
fn answered(asks: &Question, message: &[u8]) {
    let Ok(tid) = tid_of(message) else {
        assert!(read_response(asks, 0, message).is_err(), "it is no answer");
        return;
    };
    assert!(
        read_response(asks, tid ^ 1, message).is_err(),
        "it answers another query"
    );
    match read_response(asks, tid, message) {
        Ok(Ok(Response::Path { path, .. })) => {
            assert_eq!(Path::from(&PathRecord::from(&*path)), *path);
        }
        Ok(Ok(Response::Counters(counters))) => {
            let bytes: Vec<u8> = counters
                .in_order()
                .iter()
                .flat_map(|count| count.to_be_bytes())
                .collect();
            assert_eq!(message.get(16..72), Some(&bytes[..]));
        }
        Ok(Ok(Response::Endpoint(report))) => {
            assert!(report.addresses.len() <= ANSWER_MAX / 64);
            let texts = report.addresses.iter().chain([&report.provider]);
            for text in texts {
                assert!(
                    text.len() <= 3 * 64 && !text.contains(char::is_control),
                    "{text:?}"
                );
            }
        }
        Ok(Err(status)) => assert_eq!(message[2], status.code()),
        Err(reason) => {
            let text = reason.to_string();
            assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
        }
    }
}
