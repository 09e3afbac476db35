//! Many questions at once, for whoever has no tokio runtime.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::async_client::Asker;
use super::error::ClientError;
use super::service::Service;
use crate::ask::Question;
use crate::wire::Told;

/// Questions that are open at a time: as many as a service lets one client have.
const OPEN: usize = 64;

/// Asks all questions over one connection, many at a time, and waits for all answers, which come back in the order of the
/// questions. `limit` is how long connecting may take, and then each question.
///
/// ```no_run
/// use std::time::Duration;
/// use doorbell_acm::ask::Question;
/// use doorbell_acm::client::{Service, ask_all};
/// use doorbell_acm::serve::Places;
/// let service = Service::of(None, &Places::default())?;
/// let to = |last| Question::Resolve {
///     source: None,
///     destination: std::net::IpAddr::from([10, 0, 0, last]).into(),
///     no_delay: false,
/// };
/// let answers = ask_all(&service, (1..=16).map(to).collect(), Duration::from_secs(10))?;
/// assert_eq!(answers.len(), 16);
/// # Ok::<(), doorbell_acm::client::ClientError>(())
/// ```
///
/// # Errors
/// [`ClientError`] when the service could not be reached at all; each answer has its own.
pub fn ask_all(
    service: &Service,
    questions: Vec<Question>,
    limit: Duration,
) -> Result<Vec<Result<Told, ClientError>>, ClientError> {
    ask_by(service, questions, limit, None)
}

/// The same, and all of it ends within `whole`: what is not answered by then is [`ClientError::Late`].
///
/// # Errors
/// As [`ask_all`].
pub fn ask_all_within(
    service: &Service,
    questions: Vec<Question>,
    whole: Duration,
) -> Result<Vec<Result<Told, ClientError>>, ClientError> {
    ask_by(service, questions, whole, Some(whole))
}

fn ask_by(
    service: &Service,
    questions: Vec<Question>,
    limit: Duration,
    whole: Option<Duration>,
) -> Result<Vec<Result<Told, ClientError>>, ClientError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| ClientError::Broken {
        service: service.to_string(),
        source,
    })?;
    runtime.block_on(async {
        let until = whole.map(|whole| Instant::now() + whole);
        let asker = Asker::connect(service, limit).await?;
        let open = Arc::new(Semaphore::new(OPEN));
        let mut asked = Vec::with_capacity(questions.len());
        for question in questions {
            // The limit of a question begins when its turn comes. The semaphore is never closed.
            let turn = by(until, Arc::clone(&open).acquire_owned()).await;
            let asker = asker.clone();
            asked.push(turn.map(|turn| {
                tokio::spawn(async move {
                    let answer = by(until, asker.ask(question)).await;
                    drop(turn);
                    answer
                })
            }));
        }
        let late = || ClientError::Late {
            service: service.to_string(),
            waited: whole.unwrap_or(limit),
        };
        let closed = |_| ClientError::Closed {
            service: service.to_string(),
        };
        let mut answers = Vec::with_capacity(asked.len());
        for one in asked {
            answers.push(match one {
                Some(one) => one
                    .await
                    .map_err(closed)
                    .and_then(|answer| answer.unwrap_or_else(|| Err(late()))),
                None => Err(late()),
            });
        }
        Ok(answers)
    })
}

/// What comes by then, if there is an end.
async fn by<F: Future>(until: Option<Instant>, what: F) -> Option<F::Output> {
    match until {
        Some(until) => timeout_at(until, what).await.ok(),
        None => Some(what.await),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_says_nothing_is_left_when_the_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("mute");
        // It lets clients in, as far as the kernel does, and never reads.
        let _mute = std::os::unix::net::UnixListener::bind(&place).unwrap();
        let question = |number: u32| Question::Resolve {
            source: None,
            destination: std::net::IpAddr::from(number.to_be_bytes()).into(),
            no_delay: false,
        };
        let questions: Vec<Question> = (0..100_u32 * OPEN as u32).map(question).collect();
        let service = Service::Unix(place);
        // One after another they would take a hundred times as long.
        let whole = Duration::from_millis(500);
        let answers = ask_all_within(&service, questions, whole).unwrap();
        assert_eq!(answers.len(), 100 * OPEN);
        let is_late = |answer: &Result<Told, ClientError>| matches!(answer, Err(ClientError::Late { .. }));
        assert!(answers.iter().all(is_late));
    }
}
