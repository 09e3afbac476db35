//! A modelled adapter in this process, and the agent of its physical function in a thread.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use doorbell_usnic::{Agent, Pf, UsnicConfig, UsnicRail};
use doorbell_vic::{Model, Options};

/// The interval at which the agent checks whether it is to end.
const TURN: Duration = Duration::from_millis(5);

/// A modelled adapter with its agent.
#[derive(Debug)]
pub struct Adapter {
    /// What is behind its sockets.
    pub model: Model,
    stop: Arc<AtomicBool>,
    agent: Option<JoinHandle<()>>,
}

impl Adapter {
    /// Starts one, with its agent.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn start(options: Options) -> Result<Self, String> {
        let model = Model::start(options).map_err(|error| error.to_string())?;
        let folder = model.dir().to_owned();
        let pf = Pf::connect(&folder.join("pf.sock")).map_err(|error| error.to_string())?;
        let mut agent = Agent::new(pf, &folder.join("agent.sock")).map_err(|error| error.to_string())?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || while !stopped.load(Ordering::Relaxed) && agent.turn(TURN).is_ok() {};
        Ok(Self {
            model,
            stop,
            agent: Some(std::thread::spawn(serve)),
        })
    }

    /// The name of the rail over one of its functions.
    #[must_use]
    pub fn rail_name(&self, function: &str) -> String {
        format!("usnic:model/{}/{function}", self.model.dir().display())
    }

    /// Opens that rail.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(&self, function: &str, config: &UsnicConfig) -> Result<UsnicRail, String> {
        let name = self.rail_name(function);
        let name = name.parse().map_err(|error| format!("{name}: {error:?}"))?;
        UsnicRail::open(&name, config).map_err(|error| error.to_string())
    }

    /// What its drivers did that hardware would not have forgiven.
    ///
    /// # Errors
    /// The first few of it.
    pub fn is_forgiving(&self) -> Result<(), String> {
        let list = self.model.violations().list();
        if list.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} violations: {:?}",
            list.len(),
            &list[..list.len().min(5)]
        ))
    }

    /// Where its sockets are.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.model.dir().to_owned()
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(agent) = self.agent.take() {
            // One that panicked has printed why.
            let _ = agent.join();
        }
    }
}

/// The address of the rail of a side.
pub(super) fn address(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 86, 7, side as u8 + 1)
}
