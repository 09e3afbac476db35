//! The lab's program in a guest with real devices: opens them and prints the results, one line for each.
//!
//! ```text
//! vfio-lab chain BDF [KIB]     walks the steps to the open device; ends with 3 where one is broken
//! vfio-lab use BDF...          opens all at once, and tries all that a driver needs
//! vfio-lab hold BDF            keeps one open until its owner requests it back, or two minutes have passed
//! ```
//!
//! `WAY=cdev` takes the device's own file and an iommufd instead of its group.

use std::process::ExitCode;
use std::time::Duration;

use doorbell_vfio::{Backend, Bdf, Claim, Error, Event, Host, Irq, Range, RegionIndex, Slab, Verdict, chain};
use volatile_register::RO;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// STATUS of an 82576's virtual function, as in Linux's igbvf/regs.h; all ones: no device answers.
const STATUS: u64 = 0x8;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["chain", bdf] => walk(bdf, "8192"),
        ["chain", bdf, kib] => walk(bdf, kib),
        ["use", ref bdfs @ ..] if !bdfs.is_empty() => exercise(bdfs),
        ["hold", bdf] => hold(bdf),
        _ => Err("chain BDF [KIB], use BDF..., or hold BDF".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::from(3)
        }
    }
}

fn walk(bdf: &str, kib: &str) -> Outcome {
    let kib: u64 = kib.parse()?;
    let steps = chain(&Host::here(), bdf.parse()?, kib << 10);
    let steps = if by_cdev() { steps.by(Backend::Cdev) } else { steps };
    let mut last = Ok(());
    for step in steps {
        match step.verdict {
            Verdict::Passed(found) => println!("holds {}: {found}", step.name),
            Verdict::Unknown(why) => println!("open {}: {why}", step.name),
            Verdict::Failed(error) => {
                println!("broken {}: {}", step.name, error.reason());
                last = Err(format!("fix: {}", error.fix()).into());
            }
        }
    }
    last
}

/// Whether the backend with the device's own file and an iommufd was requested: `WAY=cdev`.
fn by_cdev() -> bool {
    std::env::var("WAY").is_ok_and(|way| way == "cdev")
}

fn open(bdf: &str) -> Result<Claim, Error> {
    const MEMORY: u64 = 8 << 20;
    let bdf = bdf.parse()?;
    if by_cdev() {
        return Claim::open_by(bdf, MEMORY, Backend::Cdev);
    }
    Claim::open(bdf, MEMORY)
}

fn exercise(bdfs: &[&str]) -> Outcome {
    let claims = bdfs.iter().map(|bdf| open(bdf)).collect::<Result<Vec<_>, _>>()?;
    println!("{} open at once", claims.len());
    for claim in &claims {
        registers(claim)?;
        memory(claim)?;
        interrupts(claim)?;
        claim.reset()?;
        registers(claim)?;
        println!("{}: reset, and it answers again", claim.device().name());
    }
    for claim in claims {
        claim.close()?;
    }
    let again = open(bdfs[0])?;
    println!("{}: opened again", again.device().name());
    Ok(())
}

/// Returns `what` as an error where it does not hold.
fn must(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

fn registers(claim: &Claim) -> Outcome {
    let device = claim.device();
    let (vendor, number) = claim.config().identity()?;
    let told = Host::here().device(device.name().parse::<Bdf>()?)?;
    must(
        (vendor, number) == (told.vendor, told.device),
        format!("{vendor:04x}:{number:04x} is not what sysfs contains"),
    )?;
    must(claim.config().is_bus_master()?, "it is no bus master")?;
    let bar = claim.bar(0)?;
    let mapped = bar.block::<RO<u32>>(STATUS)?.read();
    let mut called = [0; 4];
    let bar0 = RegionIndex::bar(0).ok_or("no BAR 0")?;
    device.read(bar0, STATUS, &mut called)?;
    let called = u32::from_le_bytes(called);
    must(
        mapped == called && mapped != 0 && mapped != u32::MAX,
        format!("status {mapped:#x} mapped, {called:#x} called"),
    )?;
    must(
        bar.block::<RO<u32>>(bar.len()).is_err(),
        "a register behind the end",
    )?;
    let beyond = device.read(bar0, bar.len() - 2, &mut [0; 4]);
    must(beyond.is_err(), "a read over the end")?;
    println!(
        "{}: {vendor:04x}:{number:04x}, by {}, status {mapped:#010x}, {} bytes",
        device.name(),
        device.backend(),
        bar.len()
    );
    Ok(())
}

fn memory(claim: &Claim) -> Outcome {
    let device = claim.device();
    let ranges = device.bus_addresses()?;
    let window = 0xfee0_0000..=0xfeef_ffff_u64;
    let covers = |range: &Range| {
        window.contains(&range.first)
            || window.contains(&range.last)
            || (range.first..=range.last).contains(window.start())
    };
    must(
        !ranges.is_empty() && !ranges.iter().any(covers),
        format!("interrupts are among {ranges:x?}"),
    )?;
    println!("{}: bus addresses {ranges:x?}", device.name());
    let mut shared = Vec::new();
    for slab in [Slab::new(2 << 20)?, Slab::huge(2 << 20)?, Slab::new(1)?] {
        let (length, page) = (slab.region().len(), slab.region().object().page());
        let slab = claim.share(slab).map_err(|(_, error)| error)?;
        must(
            slab.iova().is_multiple_of(page as u64),
            "not aligned as its pages",
        )?;
        println!(
            "{}: {length} bytes in pages of {page} shared at {:#x}",
            device.name(),
            slab.iova()
        );
        shared.push(slab);
    }
    // The kernel itself reports that these addresses are taken, and those behind them are not.
    let region = doorbell_fabric::memory::Region::new(4096)?;
    let taken = device.share(&region, shared[0].iova());
    must(
        taken.is_err_and(|error| error.code() == "refused"),
        "an address was shared twice",
    )?;
    let none = device.unshare(shared[0].iova() + (1 << 40), 4096);
    must(none.is_err(), "what was never shared was taken back")?;
    for slab in shared {
        let region = slab.unshare()?.into_region();
        region.write(0, b"ours");
    }
    must(claim.leaked() == 0, "memory was leaked")?;
    println!("{}: all of it taken back", device.name());
    Ok(())
}

fn interrupts(claim: &Claim) -> Outcome {
    let device = claim.device();
    let vectors = claim.config().msix_vectors()?;
    must(
        device.irq(Irq::Msix)?.count == vectors && vectors > 0,
        "the capability has another number of vectors",
    )?;
    let events = (0..vectors)
        .map(|_| Event::new())
        .collect::<Result<Vec<_>, _>>()?;
    let events: Vec<_> = events.iter().collect();
    claim.enable_msix(&events)?;
    device.raise(Irq::Msix, vectors - 1)?;
    let last = events[vectors as usize - 1];
    must(
        last.wait(Duration::from_secs(20))? == 1,
        "the last vector did not raise its event",
    )?;
    must(events[0].take() == 0, "another vector raised its event")?;
    // Again, with fewer.
    claim.enable_msix(&events[..1])?;
    let many = vec![events[0]; vectors as usize + 1];
    let refused = claim.enable_msix(&many);
    must(
        refused.is_err_and(|error| error.code() == "no-interrupt"),
        "more vectors than there are",
    )?;
    claim.disable_msix()?;
    let request = claim
        .watch_request()?
        .ok_or("it cannot report that it is wanted back")?;
    must(request.take() == 0, "it is wanted back already")?;
    println!(
        "{}: {vectors} MSI-X vectors, request and {} error events",
        device.name(),
        device.irq(Irq::Error)?.count
    );
    Ok(())
}

fn hold(bdf: &str) -> Outcome {
    let claim = open(bdf)?;
    let request = claim
        .watch_request()?
        .ok_or("it cannot report that it is wanted back")?;
    let bar = claim.bar(0)?;
    let slab = claim.share(Slab::new(1 << 20)?).map_err(|(_, error)| error)?;
    println!("held");
    let wanted = request.wait(Duration::from_secs(120))?;
    must(wanted > 0, "no request for it came")?;
    drop(bar);
    claim.close()?;
    drop(slab.unshare()?);
    println!("given back");
    Ok(())
}
