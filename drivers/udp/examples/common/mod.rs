//! Common code of the measurements: two threads, each on a core and, on request, in its own network
//! namespace.

use std::error::Error;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use doorbell_fabric::addr::RailAddress;
use doorbell_fabric::datagram::Datagram;
use doorbell_fabric::message::{Incarnation, PeerIndex};
use doorbell_fabric::rail::Rail;
use doorbell_udp::{UdpConfig, UdpRail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// One end of a measurement.
pub(crate) struct End {
    /// 0 begins, 1 answers.
    pub(crate) side: usize,
    /// The thread's rail.
    pub(crate) rail: UdpRail,
    /// The other end, as the rail numbers it.
    pub(crate) peer: PeerIndex,
    /// A plain socket that is connected to the other end's.
    #[allow(dead_code)]
    pub(crate) raw: UdpSocket,
    /// Where both ends wait for each other.
    pub(crate) barrier: Arc<Barrier>,
}

/// Where an end is: `udp:lo`, or `udp:v0@a` for the interface `v0` in the namespace `a`.
pub(crate) type Place = String;

type Published = (RailAddress, Incarnation, std::net::SocketAddr);

/// Runs `work` at both ends at once.
///
/// # Errors
/// When a namespace, a rail or a socket cannot be used.
pub(crate) fn both<T: Send + 'static>(
    places: [Place; 2],
    config: UdpConfig,
    work: fn(End) -> T,
) -> Result<[T; 2], Box<dyn Error + Send + Sync>> {
    let barrier = Arc::new(Barrier::new(2));
    let (to_second, from_first) = mpsc::channel();
    let (to_first, from_second) = mpsc::channel();
    let channels = [(to_second, from_second), (to_first, from_first)];
    let mut threads = Vec::new();
    for (side, (place, (tell, hear))) in places.into_iter().zip(channels).enumerate() {
        let barrier = Arc::clone(&barrier);
        threads.push(thread::spawn(move || {
            let end = meet(side, &place, &config, barrier, &tell, &hear)?;
            Ok::<T, Box<dyn Error + Send + Sync>>(work(end))
        }));
    }
    let mut results = threads
        .into_iter()
        .map(|thread| thread.join().expect("an end panicked"));
    let mut next = || results.next().expect("two ends");
    Ok([next()?, next()?])
}

fn meet(
    side: usize,
    place: &str,
    config: &UdpConfig,
    barrier: Arc<Barrier>,
    tell: &mpsc::Sender<Published>,
    hear: &mpsc::Receiver<Published>,
) -> Result<End, Box<dyn Error + Send + Sync>> {
    core_affinity::set_for_current(core_affinity::CoreId { id: side });
    let (name, namespace) = place.split_once('@').unwrap_or((place, ""));
    if !namespace.is_empty() {
        let file = std::fs::File::open(format!("/var/run/netns/{namespace}"))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
    }
    let mut rail = UdpRail::open(&name.parse()?, config)?;
    let own: IpAddr = rail.address().inet_of("udp").ok_or("no address")?.ip();
    let raw = UdpSocket::bind((own, 0))?;
    tell.send((rail.address(), rail.incarnation(), raw.local_addr()?))?;
    let (address, life, socket) = hear.recv()?;
    raw.connect(socket)?;
    raw.set_nonblocking(true)?;
    let peer = rail.open(&address, life)?;
    Ok(End {
        side,
        rail,
        peer,
        raw,
        barrier,
    })
}
