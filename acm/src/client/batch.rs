//! Batches of queries, for callers without a tokio runtime.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::async_client::AsyncClient;
use super::error::ClientError;
use super::service::Service;
use crate::query::Question;
use crate::wire::Response;

/// Maximum number of queries in flight: as many as a service allows one client.
const OPEN: usize = 64;

/// Sends all queries over one connection, many at a time, and waits for all answers, which are returned in
/// the order of the queries. `limit` bounds connecting, and each query.
///
/// ```no_run
/// use std::time::Duration;
/// use doorbell_acm::client::{Service, query_all};
/// use doorbell_acm::query::Question;
/// use doorbell_acm::serve::SocketPaths;
/// let service = Service::of(None, &SocketPaths::default())?;
/// let to = |last| Question::Resolve {
///     source: None,
///     destination: std::net::IpAddr::from([10, 0, 0, last]).into(),
///     no_delay: false,
/// };
/// let answers = query_all(&service, (1..=16).map(to).collect(), Duration::from_secs(10))?;
/// assert_eq!(answers.len(), 16);
/// # Ok::<(), doorbell_acm::client::ClientError>(())
/// ```
///
/// # Errors
/// [`ClientError`] when the service cannot be reached; each answer has its own result.
pub fn query_all(
    service: &Service,
    questions: Vec<Question>,
    limit: Duration,
) -> Result<Vec<Result<Response, ClientError>>, ClientError> {
    query_by(service, questions, limit, None)
}

/// Does the same within `whole` altogether: a query that is not answered by then ends with
/// [`ClientError::Late`].
///
/// # Errors
/// The errors of [`query_all`].
pub fn query_all_within(
    service: &Service,
    questions: Vec<Question>,
    whole: Duration,
) -> Result<Vec<Result<Response, ClientError>>, ClientError> {
    query_by(service, questions, whole, Some(whole))
}

fn query_by(
    service: &Service,
    questions: Vec<Question>,
    limit: Duration,
    whole: Option<Duration>,
) -> Result<Vec<Result<Response, ClientError>>, ClientError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| ClientError::Broken {
        service: service.to_string(),
        source,
    })?;
    runtime.block_on(async {
        let until = whole.map(|whole| Instant::now() + whole);
        let asker = AsyncClient::connect(service, limit).await?;
        let open = Arc::new(Semaphore::new(OPEN));
        let mut asked = Vec::with_capacity(questions.len());
        for question in questions {
            // The limit of a query begins when it is sent. The semaphore is never closed.
            let turn = by(until, Arc::clone(&open).acquire_owned()).await;
            let asker = asker.clone();
            asked.push(turn.map(|turn| {
                tokio::spawn(async move {
                    let answer = by(until, asker.query(question)).await;
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

/// Awaits a future until a deadline, if there is one.
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
    fn a_silent_service_is_left_at_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("mute");
        // It accepts clients, as far as the kernel does, and never reads.
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
        let answers = query_all_within(&service, questions, whole).unwrap();
        assert_eq!(answers.len(), 100 * OPEN);
        let is_late =
            |answer: &Result<Response, ClientError>| matches!(answer, Err(ClientError::Late { .. }));
        assert!(answers.iter().all(is_late));
    }
}
