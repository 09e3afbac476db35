//! Many clients at once, and many questions of one client.

use doorbell_acm::client::{AsyncClient, Client, ClientError};
use doorbell_acm::query::{CounterScope, Question};
use doorbell_acm::serve::{Count, Limits, Reply, Settings};
use doorbell_acm::status::Status;
use doorbell_acm::wire::Response;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::{LONG, Running, at_once, counters, path_to, settings, table, v4, with_tcp};

/// More than the original has room for.
const CROWD: usize = 1100;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

#[test]
fn eleven_hundred_clients_at_once_are_each_answered() {
    let folder = tempfile::tempdir().unwrap();
    let running = Running::start(&with_tcp(folder.path()), at_once);
    let mut clients: Vec<Client> = (0..CROWD).map(|_| running.client()).collect();
    clients.push(Client::connect(&running.tcp(), LONG).unwrap());
    for round in 0..2 {
        for client in &mut clients {
            let route = client.resolve(None, v4(7), round == 1).unwrap();
            assert_eq!(route.path, path_to(7));
        }
        assert_eq!(running.served.present(), clients.len() as u64);
    }
    drop(clients);
    running.until_empty();
    assert_eq!(running.served.of(Count::Answers), 2 * (CROWD as u64 + 1));
}

#[test]
fn one_client_too_many_is_refused_until_another_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let narrow = Settings {
        limits: Limits {
            clients: 2,
            ..Limits::default()
        },
        ..settings(folder.path())
    };
    let running = Running::start(&narrow, at_once);
    let mut two = [running.client(), running.client()];
    assert!(
        two.iter_mut()
            .all(|client| client.counters(CounterScope::Service).is_ok())
    );
    let error = running.client().counters(CounterScope::Service).unwrap_err();
    assert!(matches!(error, ClientError::Closed { .. }), "{error}");
    assert_eq!(running.served.of(Count::Crowded), 1);
    drop(two);
    running.until_empty();
    assert!(running.client().counters(CounterScope::Service).is_ok());
}

#[test]
fn an_asker_has_many_questions_open_and_each_gets_its_own_answer() {
    let folder = tempfile::tempdir().unwrap();
    // Answers come in pairs, the later one first.
    let kept = Mutex::new(None::<(Question, Reply)>);
    let backend = move |question: Question, reply: Reply| {
        let earlier = kept.lock().unwrap().take();
        match earlier {
            None => *kept.lock().unwrap() = Some((question, reply)),
            Some((old, waits)) => {
                reply.send(&table(&question));
                waits.send(&table(&old));
            }
        }
    };
    let running = Running::start(&with_tcp(folder.path()), backend);
    for service in [running.unix(), running.tcp()] {
        runtime().block_on(async {
            let asker = AsyncClient::connect(&service, LONG).await.unwrap();
            let tasks: Vec<_> = (0..1000u32)
                .map(|at| {
                    let (asker, last) = (asker.clone(), (at % 200) as u8);
                    tokio::spawn(async move { (last, asker.resolve(None, v4(last), false).await) })
                })
                .collect();
            for task in tasks {
                let (last, route) = task.await.unwrap();
                assert_eq!(route.unwrap().path, path_to(last));
            }
        });
    }
}

#[test]
fn an_async_client_reports_statuses_lateness_and_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Mutex::new(Vec::new());
    let backend = move |question: Question, reply: Reply| match &question {
        Question::Endpoint { .. } => kept.lock().unwrap().push(reply),
        _ => reply.send(&table(&question)),
    };
    let running = Running::start(&settings(folder.path()), backend);
    let service = running.unix();
    runtime().block_on(async {
        let asker = AsyncClient::connect(&service, Duration::from_millis(300))
            .await
            .unwrap();
        let refused = asker.resolve(None, v4(206), false).await.unwrap_err();
        assert_eq!(refused.status(), Some(Status::TimedOut));
        let never = Question::Endpoint { port: 1, index: 1 };
        let late = asker.query(never).await.unwrap_err();
        assert!(matches!(late, ClientError::Late { .. }), "{late}");
        let told = asker.query(Question::Counters(CounterScope::Service)).await;
        assert_eq!(
            told.unwrap(),
            Response::Counters(counters(0)),
            "no client waits for it"
        );
        drop(running);
        let end = asker
            .query(Question::Counters(CounterScope::Service))
            .await
            .unwrap_err();
        assert!(matches!(end, ClientError::Closed { .. }), "{end}");
    });
}

#[test]
fn a_late_answer_is_passed_over_by_the_next_question() {
    let folder = tempfile::tempdir().unwrap();
    let kept = Mutex::new(None);
    let backend = move |question: Question, reply: Reply| {
        let waits = kept.lock().unwrap().take();
        match waits {
            None => *kept.lock().unwrap() = Some(reply),
            Some(waits) => {
                let waits: Reply = waits;
                waits.send(&Err(Status::NoMemory));
                reply.send(&table(&question));
            }
        }
    };
    let running = Running::start(&settings(folder.path()), backend);
    let mut client = Client::connect(&running.unix(), Duration::from_millis(300)).unwrap();
    let late = client.resolve(None, v4(7), false).unwrap_err();
    assert!(matches!(late, ClientError::Late { .. }), "{late}");
    assert_eq!(client.resolve(None, v4(8), false).unwrap().path, path_to(8));
}
