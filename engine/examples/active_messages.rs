//! A token goes around the ranks, each of which adds its number; a reply confirms to each sender that it
//! arrived.
//!
//! ```text
//! cargo build -p doorbell --example active_messages
//! doorbell run -n 4 target/debug/examples/active_messages
//! ```

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use doorbell::am::{AmError, Handlers, Setup};

const TOKEN: u8 = 200;
const THANKS: u8 = 201;
/// The value before a token has arrived.
const NONE: u32 = u32::MAX;

/// What the handlers of this rank have seen.
#[derive(Default)]
struct Seen {
    token: AtomicU32,
    thanks: AtomicU32,
}

fn handlers(seen: &Arc<Seen>) -> Result<Handlers, AmError> {
    let mut handlers = Handlers::new();
    let to = Arc::clone(seen);
    handlers.request(TOKEN, move |request| {
        // A peer may send fewer arguments than it should: that is no token.
        if let [value] = request.args() {
            to.token.store(*value, Ordering::Relaxed);
        }
        let _ = request.reply_short(THANKS, &[]);
    })?;
    let to = Arc::clone(seen);
    handlers.reply(THANKS, move |_| _ = to.thanks.fetch_add(1, Ordering::Relaxed))?;
    Ok(handlers)
}

fn main() -> ExitCode {
    match pass_on() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("active_messages: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn pass_on() -> Result<(), doorbell::Error> {
    let seen = Arc::new(Seen::default());
    seen.token.store(NONE, Ordering::Relaxed);
    let setup = Setup::new(handlers(&seen)?, 1 << 16).end_on_interrupt();
    let mut am = doorbell::Builder::new().build_am(setup)?;
    let (rank, next) = (am.rank(), (am.rank() + 1) % am.size());
    let token = || Some(seen.token.load(Ordering::Relaxed)).filter(|token| *token != NONE);
    if rank == 0 {
        am.request_short(next, TOKEN, &[0])?;
    }
    let value = am.wait_until("the token", token)?;
    if rank == 0 {
        println!("0 + … + {} = {value}", am.size() - 1);
    } else {
        am.request_short(next, TOKEN, &[value + rank])?;
    }
    am.wait_until("thanks", || {
        (seen.thanks.load(Ordering::Relaxed) == 1).then_some(())
    })?;
    am.barrier()?;
    am.exit(0)?;
    Ok(())
}
