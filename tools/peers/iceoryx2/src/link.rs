//! Two services of bytes, one each way, and one of orders.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;

use crate::{Result, loan};

/// A side that waits for longer than this has lost the other.
const PATIENCE: Duration = Duration::from_secs(20);
/// The clock is read once in this many looks.
const LOOKS: u32 = 1 << 16;

/// Which of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The server, which answers.
    Serves,
    /// The client, which measures.
    Asks,
}

/// How messages are written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// From the user's memory and into it.
    Copy,
    /// In place: one byte is written, and one is read.
    Loan,
}

impl Method {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "copy" => Some(Self::Copy),
            "loan" => Some(Self::Loan),
            _ => None,
        }
    }
}

type Sends<T> = Publisher<ipc::Service, T, ()>;
type Receives<T> = Subscriber<ipc::Service, T, ()>;

/// One side of it.
pub(crate) struct Link {
    method: Method,
    pub(crate) window: usize,
    sends: Sends<[u8]>,
    receives: Receives<[u8]>,
    gives: Sends<[u64; 3]>,
    takes: Receives<[u64; 3]>,
    /// What is sent, which never changes.
    ours: Vec<u8>,
    /// What is received into: several buffers in turn.
    sinks: RefCell<Vec<u8>>,
}

/// Buffers that are received into take no more than this together, as long as two of them fit: as doorbell's
/// own.
const SINKS_BYTES: usize = 4 << 20;

impl Link {
    /// Opens it, in a folder and under a name.
    pub(crate) fn new(
        side: Side,
        [folder, name]: [&str; 2],
        method: Method,
        window: usize,
        most: usize,
    ) -> Result<Self> {
        set_log_level(LogLevel::Error);
        let mut config = Config::default();
        let folder = Path::new(folder.as_bytes()).map_err(failed("take this folder"))?;
        config.global.set_root_path(&folder);
        let node = NodeBuilder::new()
            .config(&config)
            .create::<ipc::Service>()
            .map_err(failed("make a node"))?;
        let [ours, theirs] = match side {
            Side::Serves => ["back", "there"],
            Side::Asks => ["there", "back"],
        };
        let bytes = |way: &str| -> Result<_> {
            node.service_builder(&service_name(name, way)?)
                .publish_subscribe::<[u8]>()
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(window)
                .history_size(0)
                .open_or_create()
                .map_err(failed("make a service of bytes"))
        };
        let orders = |way: &str| -> Result<_> {
            node.service_builder(&service_name(name, &format!("orders-{way}"))?)
                .publish_subscribe::<[u64; 3]>()
                .enable_safe_overflow(false)
                .history_size(0)
                .open_or_create()
                .map_err(failed("make a service of orders"))
        };
        let sends = bytes(ours)?
            .publisher_builder()
            .initial_max_slice_len(most)
            .max_loaned_samples(2)
            .create()
            .map_err(failed("publish bytes"))?;
        let receives = bytes(theirs)?
            .subscriber_builder()
            .create()
            .map_err(failed("subscribe to bytes"))?;
        let gives = orders(ours)?
            .publisher_builder()
            .create()
            .map_err(failed("publish orders"))?;
        let takes = orders(theirs)?
            .subscriber_builder()
            .create()
            .map_err(failed("subscribe to orders"))?;
        Ok(Self {
            method,
            window,
            sends,
            receives,
            gives,
            takes,
            ours: vec![1; most],
            sinks: RefCell::new(vec![0; SINKS_BYTES.max(2 * most)]),
        })
    }

    /// Sends a message of `bytes` bytes; where the other side's queue is full, waits for room.
    #[inline]
    pub(crate) fn send(&self, bytes: usize) -> Result<()> {
        let sample = self
            .sends
            .loan_slice_uninit(bytes)
            .map_err(failed("loan memory"))?;
        let sample = match self.method {
            Method::Copy => sample.write_from_slice(&self.ours[..bytes]),
            Method::Loan => loan::with_first(sample, 1),
        };
        sample.send().map_err(failed("send"))?;
        Ok(())
    }

    /// Receives a message into the buffer whose turn it is.
    #[inline]
    pub(crate) fn receive(&self, turn: usize) -> Result<()> {
        let sample = wait("message", || self.receives.receive())?;
        let payload = sample.payload();
        let mut sinks = self.sinks.borrow_mut();
        match self.method {
            Method::Copy => {
                let fit = (SINKS_BYTES / payload.len().max(1)).clamp(2, self.window.max(2));
                let at = turn % fit * payload.len();
                sinks[at..at + payload.len()].copy_from_slice(payload);
            }
            Method::Loan => sinks[0] = std::hint::black_box(payload[0]),
        }
        Ok(())
    }

    /// Gives an order: what to do, how often, with how many bytes.
    pub(crate) fn give(&self, order: [u64; 3]) -> Result<()> {
        self.gives.send_copy(order).map_err(failed("give an order"))?;
        Ok(())
    }

    /// Waits for an order.
    pub(crate) fn take(&self) -> Result<[u64; 3]> {
        Ok(*wait("order", || self.takes.receive())?.payload())
    }
}

/// Looks until something comes, and not for ever.
#[inline]
fn wait<S, E: std::fmt::Debug>(
    what: &str,
    look: impl Fn() -> std::result::Result<Option<S>, E>,
) -> Result<S> {
    let mut begun = None;
    loop {
        for _ in 0..LOOKS {
            if let Some(sample) = look().map_err(failed("receive"))? {
                return Ok(sample);
            }
            std::hint::spin_loop();
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Err(format!("no {what} came within {} s", PATIENCE.as_secs()));
        }
    }
}

fn service_name(name: &str, way: &str) -> Result<ServiceName> {
    format!("{name}/{way}")
        .as_str()
        .try_into()
        .map_err(failed("name a service"))
}

/// What failed, with iceoryx2's own word for why.
fn failed<E: std::fmt::Debug>(what: &'static str) -> impl Fn(E) -> String {
    move |why| format!("iceoryx2 cannot {what}: {why:?}")
}
