//! Rank 1 computes for some seconds without calling the library, while rank 0 sends to it, as in a program
//! whose communication and computation overlap badly. Start it with
//! `doorbell run -n 2 target/debug/examples/nopoll SECONDS MESSAGES BYTES`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use doorbell::Error;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse::<u64>());
    let (Some(Ok(seconds)), Some(Ok(messages)), Some(Ok(bytes)), None) =
        (numbers.next(), numbers.next(), numbers.next(), numbers.next())
    else {
        eprintln!("nopoll: name three numbers: seconds without a call, messages, bytes of each");
        return ExitCode::from(2);
    };
    match run(seconds, messages, bytes as usize) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nopoll: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(seconds: u64, messages: u64, bytes: usize) -> Result<(), Error> {
    let world = doorbell::init()?;
    world.barrier()?;
    match world.rank() {
        0 => {
            let began = Instant::now();
            for number in 0..messages {
                world.send(1, number, &vec![number as u8; bytes])?;
            }
            println!("rank 0: {messages} messages sent after {:?}", began.elapsed());
        }
        1 => {
            std::thread::sleep(Duration::from_secs(seconds));
            let mut into = vec![0; bytes];
            for number in 0..messages {
                let got = world.recv(0, number, &mut into)?;
                assert!(got.len == bytes && into.iter().all(|byte| *byte == number as u8));
            }
            println!("rank 1: {messages} messages received");
        }
        _ => {}
    }
    Ok(())
}
