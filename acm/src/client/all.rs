//! Many questions at once, for whoever has no tokio runtime.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Semaphore;

use super::asker::Asker;
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
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|source| ClientError::Broken {
        service: service.to_string(),
        source,
    })?;
    runtime.block_on(async {
        let asker = Asker::connect(service, limit).await?;
        let open = Arc::new(Semaphore::new(OPEN));
        let mut asked = Vec::with_capacity(questions.len());
        for question in questions {
            // The limit of a question begins when its turn comes. The semaphore is never closed.
            let turn = Arc::clone(&open).acquire_owned().await.ok();
            let asker = asker.clone();
            asked.push(tokio::spawn(async move {
                let answer = asker.ask(question).await;
                drop(turn);
                answer
            }));
        }
        let mut answers = Vec::with_capacity(asked.len());
        for one in asked {
            answers.push(one.await.unwrap_or_else(|_| {
                Err(ClientError::Closed {
                    service: service.to_string(),
                })
            }));
        }
        Ok(answers)
    })
}
