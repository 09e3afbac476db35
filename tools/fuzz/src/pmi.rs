//! The messages of a launcher to the clients of PMI-1 and PMI-2: whatever the pieces in which one comes, it
//! is the same answer or a fault; a fault can be shown, and is the end of the conversation; what is kept of
//! it has a bound.

use doorbell_oob::launch::{Answer, Dialect, LaunchError, Pmi1, Pmi2, Request, Session};

/// How many requests are sent, one after another, as long as they are answered.
const QUESTIONS: usize = 8;

/// Reads the input as what a launcher sends from its first message on, or from where values are exchanged.
pub fn run(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else {
        return;
    };
    let (step, opened) = (usize::from(choice >> 3).max(1), choice & 2 == 0);
    match (choice & 1 == 0, opened) {
        (true, false) => talk(Session::<Pmi1>::new(0, 2, "j"), bytes, step),
        (true, true) => talk(opened_1(), bytes, step),
        (false, false) => talk(Session::<Pmi2>::new(0, 2, "j"), bytes, step),
        (false, true) => talk(opened_2(), bytes, step),
    }
}

fn opened_1() -> Session<Pmi1> {
    let answers: [&[u8]; 3] = [
        b"cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        b"cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        b"cmd=my_kvsname kvsname=k\n",
    ];
    opened(Session::new(0, 2, "j"), &answers)
}

fn opened_2() -> Session<Pmi2> {
    let answers: [&[u8]; 3] = [
        b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
        b"    41cmd=fullinit-response;rc=0;rank=0;size=2;",
        b"    36cmd=job-getid-response;rc=0;jobid=k;",
    ];
    opened(Session::new(0, 2, "j"), &answers)
}

fn opened<D: Dialect>(mut session: Session<D>, answers: &[&[u8]]) -> Session<D> {
    for answer in answers {
        let request = session.next_of_opening().expect("the opening goes on").clone();
        session.request(request).expect("it is its turn");
        session.take(answer).expect("as a launcher sends it");
    }
    assert!(session.next_of_opening().is_none());
    session
}

fn talk<D: Dialect>(mut session: Session<D>, mut bytes: &[u8], step: usize) {
    for at in 0..QUESTIONS {
        let request = match session.next_of_opening() {
            Some(request) => request.clone(),
            None if at % 2 == 0 => Request::Get { key: "k".to_owned() },
            None if at % 4 == 1 => Request::Spawn(Box::default()),
            None => Request::Fence,
        };
        let gets = matches!(request, Request::Get { .. });
        let spawns = matches!(request, Request::Spawn(_));
        session.request(request).expect("nothing is owed");
        // The end of an answer is the end of a piece, as no launcher sends more than one answer to a request.
        let end = D::split(bytes)
            .ok()
            .flatten()
            .map_or(bytes.len(), |(_, length)| length);
        let (answer, later) = bytes.split_at(end);
        match hear(&mut session, answer, step) {
            Ok(Some(Answer::Value(value))) => {
                assert!(gets && value.len() <= answer.len());
                assert!(value.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
            Ok(Some(Answer::Absent)) => assert!(gets),
            Ok(Some(Answer::Done)) => assert!(!gets),
            Ok(Some(Answer::Unspawned(why))) => {
                assert!(
                    spawns && why.len() <= 2000 && !why.contains(char::is_control),
                    "{why:?}"
                );
            }
            Ok(None) => return,
            Err(error) => return over(&mut session, &error),
        }
        bytes = later;
    }
    let terms = session.terms();
    assert!(terms.key >= 31 && D::room(terms, "db-hello-4294967295-0") >= 31);
}

fn hear<D: Dialect>(
    session: &mut Session<D>,
    answer: &[u8],
    step: usize,
) -> Result<Option<Answer>, LaunchError> {
    let mut heard = Ok(None);
    for piece in answer.chunks(step) {
        assert!(matches!(heard, Ok(None)), "an answer before its end: {heard:?}");
        heard = session.take(piece);
        if heard.is_err() {
            return heard;
        }
    }
    heard
}

/// A fault is one sentence, and the last word.
fn over<D: Dialect>(session: &mut Session<D>, error: &LaunchError) {
    let text = error.to_string();
    assert!(text.len() < 1000 && !text.contains(char::is_control), "{text:?}");
    for request in [Request::Greet, Request::Fence, Request::Finalize] {
        assert!(
            session.request(request).is_err(),
            "it sends a request after a fault"
        );
    }
}
