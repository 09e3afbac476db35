use proptest::prelude::*;

use super::*;
use crate::launch::{Pmi1, Pmi2, Program};

/// Sends a request, and passes the whole answer in one piece.
fn talk<D: Dialect>(
    session: &mut Session<D>,
    request: Request,
    asked: &str,
    answered: &str,
) -> Result<Answer, LaunchError> {
    let bytes = session.request(request)?;
    assert_eq!(String::from_utf8(bytes).unwrap(), asked);
    Ok(session.take(answered.as_bytes())?.expect("the answer is whole"))
}

fn opened1() -> Session<Pmi1> {
    let mut session = Session::new(1, 2, "");
    for (request, asked, answered) in [
        (
            Request::Greet,
            "cmd=init pmi_version=1 pmi_subversion=1\n",
            "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n",
        ),
        (
            Request::Limits,
            "cmd=get_maxes\n",
            "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        ),
        (
            Request::Name,
            "cmd=get_my_kvsname\n",
            "cmd=my_kvsname kvsname=kvs_1\n",
        ),
    ] {
        assert_eq!(session.next_of_opening(), Some(&request));
        assert_eq!(
            talk(&mut session, request, asked, answered).unwrap(),
            Answer::Done
        );
    }
    assert_eq!(session.next_of_opening(), None);
    session
}

fn opened2() -> Session<Pmi2> {
    let mut session = Session::new(0, 2, "3.0");
    for (request, asked, answered) in [
        (
            Request::Greet,
            "cmd=init pmi_version=2 pmi_subversion=0\n",
            "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n",
        ),
        (
            Request::Join,
            "    51cmd=fullinit;pmijobid=3.0;pmirank=0;threaded=FALSE;",
            "91    cmd=fullinit-response;rc=0;pmi-version=2;rank=0;size=2;appnum=-1;debugged=FALSE;spare=xxxx;",
        ),
        (
            Request::Name,
            "    14cmd=job-getid;",
            "    38cmd=job-getid-response;rc=0;jobid=3.0;",
        ),
    ] {
        assert_eq!(session.next_of_opening(), Some(&request));
        assert_eq!(
            talk(&mut session, request, asked, answered).unwrap(),
            Answer::Done
        );
    }
    session
}

fn put(key: &str, value: &str) -> Request {
    Request::Put {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

fn get(key: &str) -> Request {
    Request::Get { key: key.to_owned() }
}

#[test]
fn a_conversation_of_pmi_1_word_for_word() {
    let mut session = opened1();
    assert_eq!((session.terms().key, session.terms().value), (63, 1023));
    assert_eq!(session.terms().job, "kvs_1");
    for (request, asked, answered, answer) in [
        (
            put("k", "v"),
            "cmd=put kvsname=kvs_1 key=k value=v\n",
            "cmd=put_result rc=0 msg=success\n",
            Answer::Done,
        ),
        (
            Request::Fence,
            "cmd=barrier_in\n",
            "cmd=barrier_out\n",
            Answer::Done,
        ),
        (
            get("k"),
            "cmd=get kvsname=kvs_1 key=k\n",
            "cmd=get_result rc=0 msg=success value=v=w \n",
            Answer::Value("v=w".to_owned()),
        ),
        (
            get("x"),
            "cmd=get kvsname=kvs_1 key=x\n",
            "cmd=get_result rc=-1 msg=key_x_not_found value=unknown\n",
            Answer::Absent,
        ),
        (
            Request::Finalize,
            "cmd=finalize\n",
            "cmd=finalize_ack\n",
            Answer::Done,
        ),
    ] {
        assert_eq!(talk(&mut session, request, asked, answered).unwrap(), answer);
    }
    let late = session.request(Request::Fence).unwrap_err().to_string();
    assert!(late.contains("after finalize"), "{late}");
}

#[test]
fn a_conversation_of_pmi_2_word_for_word() {
    let mut session = opened2();
    for (request, asked, answered, answer) in [
        (
            put("k", "a;b"),
            "    29cmd=kvs-put;key=k;value=a;;b;",
            "26    cmd=kvs-put-response;rc=0;",
            Answer::Done,
        ),
        (
            Request::Fence,
            "    14cmd=kvs-fence;",
            "    28cmd=kvs-fence-response;rc=0;",
            Answer::Done,
        ),
        (
            get("k"),
            "    37cmd=kvs-get;jobid=3.0;srcid=-1;key=k;",
            "    48cmd=kvs-get-response;found=TRUE;value=a;;b;rc=0;",
            Answer::Value("a;b".to_owned()),
        ),
        (
            get("x"),
            "    37cmd=kvs-get;jobid=3.0;srcid=-1;key=x;",
            "38    cmd=kvs-get-response;rc=0;found=FALSE;",
            Answer::Absent,
        ),
    ] {
        assert_eq!(talk(&mut session, request, asked, answered).unwrap(), answer);
    }
    let bytes = session
        .request(Request::Abort {
            code: 3,
            text: "it; is over".to_owned(),
        })
        .unwrap();
    assert_eq!(bytes, b"    39cmd=abort;isworld=TRUE;msg=it, is over;");
    assert!(session.request(Request::Finalize).is_err());
}

#[test]
fn an_answer_may_come_byte_by_byte() {
    let mut session = opened2();
    session.request(get("k")).unwrap();
    let answer = "46    cmd=kvs-get-response;rc=0;found=TRUE;value=v1;";
    let (last, before) = answer.as_bytes().split_last().unwrap();
    for byte in before {
        assert_eq!(session.take(&[*byte]).unwrap(), None);
    }
    assert_eq!(
        session.take(&[*last]).unwrap(),
        Some(Answer::Value("v1".to_owned()))
    );
}

/// Every request at every stage: which are let through.
#[test]
fn requests_are_valid_in_their_stages_only() {
    let all = || {
        [
            Request::Greet,
            Request::Join,
            Request::Limits,
            Request::Name,
            put("k", "v"),
            Request::Fence,
            get("k"),
            Request::Abort {
                code: 1,
                text: String::new(),
            },
            Request::Finalize,
        ]
    };
    fn allowed<D: Dialect>(session: impl Fn() -> Session<D>, all: [Request; 9]) -> Vec<&'static str> {
        let steps = all.map(|request| (request.step(), session().request(request).is_ok()));
        steps
            .iter()
            .filter(|(_, good)| *good)
            .map(|(step, _)| *step)
            .collect()
    }
    assert_eq!(allowed(|| Session::<Pmi1>::new(0, 2, ""), all()), ["init"]);
    let greeted = || {
        let mut session = Session::<Pmi1>::new(0, 2, "");
        session.request(Request::Greet).unwrap();
        session
            .take(b"cmd=response_to_init pmi_version=1 rc=0\n")
            .unwrap();
        session
    };
    assert_eq!(allowed(greeted, all()), ["get_maxes", "abort"]);
    assert_eq!(
        allowed(opened1, all()),
        ["put", "fence", "get", "abort", "finalize"]
    );
    assert_eq!(
        allowed(opened2, all()),
        ["put", "fence", "get", "abort", "finalize"]
    );
    let owing = || {
        let mut session = opened1();
        session.request(Request::Fence).unwrap();
        session
    };
    assert_eq!(allowed(owing, all()), ["abort"]);
    let over = || {
        let mut session = opened1();
        session.over();
        session
    };
    assert_eq!(allowed(over, all()), [""; 0]);
    let ended = || {
        let mut session = opened1();
        session.request(Request::Finalize).unwrap();
        session.take(b"cmd=finalize_ack\n").unwrap();
        session
    };
    assert_eq!(allowed(ended, all()), [""; 0]);
}

/// Sends `request` in an open session that receives `answer`, and returns the error's code and text. No
/// request is possible after it.
fn fault<D: Dialect>(mut session: Session<D>, request: Request, answer: &[u8]) -> (&'static str, String) {
    session.request(request).unwrap();
    let error = session.take(answer).unwrap_err();
    let after = session.request(Request::Fence).unwrap_err();
    assert!(after.to_string().contains("after a failure"), "{after}");
    let text = error.to_string();
    assert!(
        !text.contains('\n') && text.chars().all(|c| !c.is_control()),
        "{text:?}"
    );
    (error.code(), text)
}

#[test]
fn hostile_answers_of_pmi_1() {
    let long = format!("cmd=get_result value={}", "v".repeat(20_000));
    let many = format!(
        "cmd=get_result {}\n",
        (0..100).map(|i| format!("a{i}=1 ")).collect::<String>()
    );
    let cases: &[(&[u8], &str, &str)] = &[
        (b"\n", "launch.garbled", "does not begin with a command"),
        (b"hello\n", "launch.garbled", "`hello` in it is not a word"),
        (b"=x\n", "launch.garbled", "not a word"),
        (b"value=v cmd=get_result\n", "launch.garbled", "does not begin"),
        (b"cmd=\n", "launch.garbled", "does not begin"),
        (
            b"cmd=get_result rc=0 rc=1 value=v\n",
            "launch.garbled",
            "`rc` occurs in it twice",
        ),
        (
            b"cmd=get_result rc=0x1 value=v\n",
            "launch.garbled",
            "not a number",
        ),
        (
            b"cmd=get_result rc=99999999999999999999 value=v\n",
            "launch.garbled",
            "not a number",
        ),
        (b"cmd=get_result rc=0\n", "launch.garbled", "lacks `value`"),
        (
            b"cmd=put_result rc=0\n",
            "launch.garbled",
            "`put_result` instead of `get_result`",
        ),
        (
            b"cmd=get_result value=\xff\n",
            "launch.garbled",
            "other than printable ASCII",
        ),
        (
            b"cmd=get_result value=\x1b[2J\n",
            "launch.garbled",
            "other than printable ASCII",
        ),
        (
            b"cmd=get_result rc=0 value=v\ncmd=barrier_out\n",
            "launch.garbled",
            "further data follows",
        ),
        (long.as_bytes(), "launch.garbled", "it has more than"),
        (many.as_bytes(), "launch.garbled", "more than 64 words"),
    ];
    for (answer, code, word) in cases {
        let (found, text) = fault(opened1(), get("k"), answer);
        assert_eq!(&found, code, "{text}");
        assert!(text.contains(word) && text.contains("`get`"), "{text}");
    }
    let (code, text) = fault(opened1(), put("k", "v"), b"cmd=put_result rc=-1 msg=full\n");
    assert_eq!(code, "launch.refused");
    assert!(text.contains("rc -1, `full`"), "{text}");
    let (code, text) = fault(opened1(), Request::Finalize, b"cmd=finalize_ack rc=3\n");
    assert_eq!(code, "launch.refused");
    assert!(text.contains("(rc 3)"), "{text}");
}

#[test]
fn hostile_answers_of_pmi_2() {
    let cases: &[(&[u8], &str)] = &[
        (b"      cmd", "not the length"),
        (b"-12   cmd", "not the length"),
        (b"1 2   cmd", "not the length"),
        (b"\x1b[2J..", "not the length"),
        (b"999999", "announces 999999 bytes"),
        (b"     0", "does not begin with a command"),
        (b"     3abc", "not a word"),
        (b"    20cmd=kvs-get-response", "does not end"),
        (b"    23cmd=kvs-get-response;=;", "not a name"),
        (b"    23cmd=kvs-get-response;x;", "not a word"),
        (b"    27cmd=kvs-get-response;a;b=c;", "not a name"),
        (b"    27cmd=kvs-put-response;rc=00;", "instead of"),
        (b"    26cmd=kvs-get-response;rc=0;", "lacks `value`"),
        (b"    26cmd=kvs-get-response;rc=x;", "not a number"),
        (
            b"    26cmd=kvs-get-response;\x00c=0;",
            "other than printable ASCII",
        ),
        (b"    31cmd=kvs-get-response;rc=0;rc=0;", "twice"),
        (b"    26cmd=kvs-get-response;rc=0;    26", "further data follows"),
    ];
    for (answer, word) in cases {
        let (code, text) = fault(opened2(), get("k"), answer);
        assert_eq!(code, "launch.garbled", "{text}");
        assert!(text.contains(word), "{word}: {text}");
    }
    let refused = b"    38cmd=kvs-fence-response;rc=7;errmsg=no;";
    let (code, text) = fault(opened2(), Request::Fence, refused);
    assert_eq!(code, "launch.refused");
    assert!(text.contains("rc 7, `no`"), "{text}");
}

/// The values in the opening are checked as well.
#[test]
fn a_beginning_that_cannot_be_is_refused() {
    fn after<D: Dialect>(answers: &[&str]) -> String {
        let mut session = Session::<D>::new(0, 2, "j");
        for (at, answer) in answers.iter().enumerate() {
            let request = session.next_of_opening().expect("the opening goes on").clone();
            session.request(request).unwrap();
            match session.take(answer.as_bytes()) {
                Ok(done) => assert_eq!((done, at + 1 < answers.len()), (Some(Answer::Done), true)),
                Err(error) => {
                    assert_eq!(at + 1, answers.len(), "{error}");
                    return error.to_string();
                }
            }
        }
        unreachable!("the last answer is refused")
    }
    let hello = "cmd=response_to_init pmi_version=1 rc=0\n";
    let maxes = "cmd=maxes keylen_max=64 vallen_max=1024\n";
    let long = format!("cmd=my_kvsname kvsname={}\n", "k".repeat(600));
    let tight = format!("cmd=my_kvsname kvsname={}\n", "k".repeat(500));
    for (answers, word) in [
        (&["cmd=response_to_init pmi_version=2 rc=0\n"][..], "version 2"),
        (&["cmd=response_to_init rc=0\n"], "lacks `pmi_version`"),
        (&["cmd=response_to_init rc=-1 pmi_version=1\n"], "rc -1"),
        (&[hello, "cmd=maxes vallen_max=1024\n"], "lacks `keylen_max`"),
        (
            &[hello, "cmd=maxes keylen_max=8 vallen_max=1024\n"],
            "`keylen_max` is 8",
        ),
        (
            &[hello, "cmd=maxes keylen_max=64 vallen_max=-1\n"],
            "`vallen_max` is -1",
        ),
        (
            &[hello, "cmd=maxes keylen_max=64 vallen_max=9999999999\n"],
            "`vallen_max` is 9999999999",
        ),
        (&[hello, maxes, "cmd=my_kvsname kvsname=\n"], "`kvsname`"),
        (&[hello, maxes, &long], "`kvsname`"),
    ] {
        let text = after::<Pmi1>(answers);
        assert!(text.contains(word), "{word}: {text}");
    }
    // A long name leaves less room, and still enough.
    let mut session = Session::<Pmi1>::new(0, 2, "");
    for answer in [hello, maxes, &tight] {
        let request = session.next_of_opening().unwrap().clone();
        session.request(request).unwrap();
        session.take(answer.as_bytes()).unwrap();
    }
    let room = Pmi1::room(session.terms(), "db-hello-0-0");
    let line = Pmi1::write(session.terms(), &put("db-hello-0-0", &"v".repeat(room)));
    assert!(room < 500 && line.len() == 1023, "{room} {}", line.len());

    let hello = "cmd=response_to_init pmi_version=2 rc=0\n";
    let frame = |body: &str| format!("{:<6}{body}", body.len());
    let others = [
        ("cmd=fullinit-response;rc=0;rank=1;size=2;", "rank 1 of 2"),
        ("cmd=fullinit-response;rc=0;rank=0;size=-2;", "of -2"),
        ("cmd=fullinit-response;rc=0;size=2;", "lacks `rank`"),
        ("cmd=fullinit-response;rc=14;", "rc 14"),
    ];
    for (body, word) in others {
        let text = after::<Pmi2>(&[hello, &frame(body)]);
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn unsolicited_input_is_not_accepted() {
    let mut session = opened1();
    let error = session.take(b"cmd=barrier_out\n").unwrap_err().to_string();
    assert!(error.contains("without a request"), "{error}");
}

proptest! {
    #[test]
    fn no_bytes_panic_or_are_kept_without_end(
        pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..20),
        two in any::<bool>(),
        framed in any::<bool>(),
    ) {
        let head: &[u8] = match (two, framed) {
            (true, true) => b"    40cmd=kvs-get-response;",
            (false, true) => b"cmd=get_result value=",
            _ => b"",
        };
        let pieces = std::iter::once(head.to_vec()).chain(pieces);
        if two {
            feed(opened2(), pieces);
        } else {
            feed(opened1(), pieces);
        }
    }
}

fn feed<D: Dialect>(mut session: Session<D>, pieces: impl Iterator<Item = Vec<u8>>) {
    session.request(get("k")).unwrap();
    for piece in pieces {
        if !matches!(session.take(&piece), Ok(None)) {
            return;
        }
        assert!(session.bytes.len() <= D::LONGEST + 64);
    }
}

#[test]
fn an_order_for_processes_is_one_frame_of_pmi_2() {
    let program = Program {
        name: "a;b".to_owned(),
        args: vec!["x y".to_owned()],
        ranks: 2,
        values: vec![("k".to_owned(), "v".to_owned())],
        infos: Vec::new(),
    };
    let body = "cmd=spawn;ncmds=1;preputcount=1;ppkey0=k;ppval0=v;subcmd=a;;b;maxprocs=2;argc=1;argv0=x y;infokeycount=0;";
    let asked = format!("{:>6}{body}", body.len());
    let frame = |body: &str| format!("{:<6}{body}", body.len());
    let order = || Request::Spawn(Box::new(program.clone()));
    let mut session = opened2();
    let yes = frame("cmd=spawn-response;rc=0;jobid=4.0;nerrs=0;");
    assert_eq!(talk(&mut session, order(), &asked, &yes).unwrap(), Answer::Done);
    // What is refused leaves the launcher usable.
    let no = frame("cmd=spawn-response;rc=14;errmsg=no room;");
    let answer = talk(&mut session, order(), &asked, &no).unwrap();
    assert_eq!(answer, Answer::Unspawned("no room".to_owned()));
    assert_eq!(talk(&mut session, order(), &asked, &yes).unwrap(), Answer::Done);
}
