//! How the two sockets of datagrams find each other, and which length passes between them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ropewalk_proto::rapid::{DATAGRAM_HEADER_LEN, Datagram, DatagramKind, PAYLOAD_MIN};
use ropewalk_proto::wire::{FrameHeader, FrameKind};

use socket2::SockRef;

use super::frames::{Frames, frame};
use super::protect::{Opener, Sealer};
use super::{Options, sys};
use crate::LaneError;

/// Both ends are there, or this is given up.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// No datagram at all for so long: they do not come through.
const BLOCKED_AFTER: Duration = Duration::from_secs(3);
/// Probes are sent again after this.
const PROBE_EVERY: Duration = Duration::from_millis(200);
/// Once one probe came, longer ones are waited for this much longer, and a round trip ...
const LONGER: Duration = Duration::from_millis(20);
/// ... but where their length was set this long: without them there is no lane, and probes are lost like all else.
const LONGER_SET: Duration = PROBE_EVERY.saturating_mul(5);
/// Of each length that many go at a time: a lost one would make the lane's packets short for good.
const PROBES: usize = 2;
/// Longest packets that are looked for; longer ones have to be set. On loopback they would fill the default
/// receive buffer with a handful.
const MTU_FOUND_MAX: u32 = 9000;
/// Lengths of packets that networks are known to stop at, below the interface's own.
const LADDER: [u32; 5] = [9000, 4096, 1500, 1400, 1280];
/// Longest datagram there can be, as the header counts it.
const DATAGRAM_MAX: u32 = 65_000;

/// A lane whose datagrams come through.
pub(super) struct Met {
    pub socket: UdpSocket,
    pub lane: u32,
    /// Bytes of a whole datagram: header, payload, trailer.
    pub datagram: u32,
    /// Other end of the datagrams.
    pub far: SocketAddr,
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> LaneError {
    move |source| LaneError::Socket { doing, source }
}

/// A socket on the stream's own address and interface, so that datagrams take the stream's way.
fn open(frames: &Frames) -> Result<UdpSocket, LaneError> {
    let address = SocketAddr::new(frames.near.ip(), 0);
    let socket = UdpSocket::bind(address).map_err(failed("opening a socket for datagrams"))?;
    // Best effort, as for the stream: without it the host's routes decide.
    let _ = SockRef::from(&socket).bind_device(frames.device.as_deref());
    let set = || {
        socket.set_nonblocking(true)?;
        sys::never_fragment(&socket, address.is_ipv6())
    };
    set().map_err(failed("setting up the socket for datagrams"))?;
    Ok(socket)
}

/// Connects to the other end of the datagrams: the stream's address with the port it told.
fn connect(frames: &Frames, socket: &UdpSocket, port: u32) -> Result<SocketAddr, LaneError> {
    let port = u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| LaneError::Unexpected(format!("{port} is no port")))?;
    let mut far = frames.far;
    far.set_port(port);
    socket
        .connect(far)
        .map_err(failed("connecting the socket for datagrams"))?;
    Ok(far)
}

/// Longest datagram that may be tried: set, or the interface's.
fn longest(socket: &UdpSocket, far: &SocketAddr, options: &Options) -> Result<u32, LaneError> {
    let mtu = match options.mtu {
        Some(mtu) => mtu,
        None => sys::mtu(socket, far.is_ipv6())
            .map_err(failed("reading the interface's MTU"))?
            .min(MTU_FOUND_MAX),
    };
    Ok(mtu.saturating_sub(sys::overhead(far)).min(DATAGRAM_MAX))
}

/// Shortest datagram that may be found.
fn least(trailer: usize) -> u32 {
    DATAGRAM_HEADER_LEN as u32 + trailer as u32 + PAYLOAD_MIN
}

fn port_of(socket: &UdpSocket) -> Result<SocketAddr, LaneError> {
    socket
        .local_addr()
        .map_err(failed("reading the port for datagrams"))
}

/// Waits for one frame of a kind while `every` is called from time to time; `None` when the time is over.
fn expect(
    frames: &mut Frames,
    socket: &UdpSocket,
    kind: FrameKind,
    until: Instant,
    mut every: impl FnMut() -> io::Result<()>,
) -> Result<Option<FrameHeader>, LaneError> {
    loop {
        frames.flush()?;
        if let Some((header, _)) = frames.pull()? {
            if header.kind != kind {
                let text = format!("{:?} frame where {kind:?} was due", header.kind);
                return Err(LaneError::Unexpected(text));
            }
            return Ok(Some(header));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        every().map_err(failed("sending probes"))?;
        let pause = until.min(Instant::now() + PROBE_EVERY);
        while Instant::now() < pause {
            frames.wait(socket, false, pause)?;
            // Knocks need no answer.
            while socket.recv(&mut [0; 1]).is_ok() {}
            if frames.has_come()? {
                break;
            }
        }
    }
}

/// Waits for the frame that tells the other end's port.
fn expect_socket(
    frames: &mut Frames,
    socket: &UdpSocket,
    kind: FrameKind,
    until: Instant,
) -> Result<FrameHeader, LaneError> {
    expect(frames, socket, kind, until, || Ok(()))?
        .ok_or_else(|| frames.link.silent("it was to open a socket for datagrams"))
}

/// The sender's side.
pub(super) fn as_sender(
    frames: &mut Frames,
    sealer: &mut Sealer,
    trailer: usize,
    options: &Options,
) -> Result<Met, LaneError> {
    let until = Instant::now() + PEER_TIMEOUT;
    let socket = open(frames)?;
    let near = port_of(&socket)?;
    let lane = u32::from_le_bytes(crate::preface::random_bytes());
    frames.push(&frame(FrameKind::Hello, lane, near.port().into()), &[])?;
    let ready = expect_socket(frames, &socket, FrameKind::Ready, until)?;
    let far = connect(frames, &socket, ready.code)?;
    let theirs = u32::try_from(ready.offset).unwrap_or(DATAGRAM_MAX);
    let longest = longest(&socket, &far, options)?.min(theirs);
    let least = least(trailer);
    // Where a length is set, the shortest tells whether that or everything is stopped.
    let ladder = match options.mtu {
        Some(_) => &LADDER[LADDER.len() - 1..],
        None => &LADDER,
    };
    let shorter = ladder.iter().map(|mtu| mtu - sys::overhead(&far));
    let mut lengths = vec![longest];
    lengths.extend(shorter.filter(|length| *length < longest));
    lengths.retain(|length| *length >= least);
    let mut probes = || {
        for &length in std::iter::repeat_n(&lengths, PROBES).flatten() {
            let bytes = probe(lane, length, sealer, trailer);
            match socket.send(&bytes) {
                // Longer than the interface takes, or nobody there yet: what comes through tells.
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // A firewall of this host.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let until = Instant::now() + BLOCKED_AFTER + Duration::from_secs(1);
    let probed = expect(frames, &socket, FrameKind::Probed, until, &mut probes)?;
    let datagram = probed.map_or(0, |probed| probed.code);
    if datagram > longest || (1..least).contains(&datagram) {
        let text = format!("a probe of {datagram} bytes was not sent");
        return Err(LaneError::Unexpected(text));
    }
    check(near, far, datagram, longest, options)?;
    Ok(Met {
        socket,
        lane,
        datagram,
        far,
    })
}

/// A probe of this length.
fn probe(lane: u32, length: u32, sealer: &mut Sealer, trailer: usize) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    let head = Datagram {
        kind: DatagramKind::Probe,
        round: 0,
        length: (length as usize - DATAGRAM_HEADER_LEN - trailer) as u16,
        lane,
        sequence: sealer.next_sequence(),
        offset: 0,
        grant: length,
        echo: 0,
    };
    bytes[..DATAGRAM_HEADER_LEN].copy_from_slice(&head.encode());
    sealer.seal(&mut bytes);
    bytes
}

/// Whether what was found will do.
fn check(
    from: SocketAddr,
    to: SocketAddr,
    found: u32,
    longest: u32,
    options: &Options,
) -> Result<(), LaneError> {
    match options.mtu {
        _ if found == 0 => Err(LaneError::Blocked {
            from,
            to,
            seconds: BLOCKED_AFTER.as_secs(),
        }),
        Some(mtu) if found < longest => Err(LaneError::TooLong { mtu, from, to }),
        _ => Ok(()),
    }
}

/// The receiver's side.
pub(super) fn as_receiver(
    frames: &mut Frames,
    opener: &mut Opener,
    knocker: &mut Sealer,
    trailer: usize,
    options: &Options,
) -> Result<Met, LaneError> {
    let until = Instant::now() + PEER_TIMEOUT;
    let socket = open(frames)?;
    let near = port_of(&socket)?;
    let hello = expect_socket(frames, &socket, FrameKind::Hello, until)?;
    let lane = hello.grant;
    let far = connect(frames, &socket, hello.code)?;
    let longest = longest(&socket, &far, options)?;
    let mut ready = frame(FrameKind::Ready, 0, near.port().into());
    ready.offset = longest.into();
    frames.push(&ready, &[])?;
    let rtt = Duration::from(frames.rtt());
    let longer = match options.mtu {
        Some(_) => LONGER_SET,
        None => LONGER,
    };
    let mut until = Instant::now() + BLOCKED_AFTER + rtt;
    let mut knock_at = Instant::now();
    let mut found = 0;
    let mut bytes = vec![0; 1 << 16];
    let mut out = vec![0; 1 << 16];
    while found < longest {
        frames.flush()?;
        let now = Instant::now();
        if now >= until {
            break;
        }
        if now >= knock_at && found == 0 {
            knock(&socket, lane, knocker, trailer);
            knock_at = now + PROBE_EVERY;
        }
        match socket.recv(&mut bytes) {
            Ok(count) => {
                let Ok(head) = Datagram::decode(&bytes[..count], trailer) else {
                    continue;
                };
                let ours = head.kind == DatagramKind::Probe
                    && head.lane == lane
                    && head.grant as usize == count
                    && head.grant >= least(trailer);
                let payload = &mut out[..head.length.into()];
                if ours && opener.open(head.sequence, &bytes[..count], payload) {
                    if found == 0 {
                        until = until.min(Instant::now() + longer + rtt);
                    }
                    found = found.max(head.grant);
                }
            }
            // The peer's end of the stream tells when it is gone; until then, wait.
            Err(_) => frames.wait(&socket, false, until.min(now + PROBE_EVERY))?,
        }
        if found == 0 && frames.has_come()? {
            // Nothing is due before the probes are answered: the peer has given up.
            if let Some((header, _)) = frames.pull()? {
                let text = format!("{:?} frame before the datagrams were found", header.kind);
                return Err(LaneError::Unexpected(text));
            }
        }
    }
    // The sender is told in any case; 0 is no length.
    frames.push(&frame(FrameKind::Probed, 0, found), &[])?;
    frames.flush()?;
    check(far, near, found, longest, options)?;
    Ok(Met {
        socket,
        lane,
        datagram: found,
        far,
    })
}

fn knock(socket: &UdpSocket, lane: u32, knocker: &mut Sealer, trailer: usize) {
    let head = Datagram {
        kind: DatagramKind::Knock,
        round: 0,
        length: 0,
        lane,
        sequence: knocker.next_sequence(),
        offset: 0,
        grant: 0,
        echo: 0,
    };
    let mut bytes = head.encode().to_vec();
    bytes.resize(DATAGRAM_HEADER_LEN + trailer, 0);
    knocker.seal(&mut bytes);
    // Whether it comes through does not matter; the probes show what does.
    let _ = socket.send(&bytes);
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::super::{Order, protect::Direction, protect::trailer_len};
    use super::*;
    use crate::frame_io::Guard;
    use crate::{Check, Protection};

    /// Two ends of a stream over loopback.
    fn streams() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// A lane whose length is set opens although the first probes of that length are lost.
    #[test]
    fn a_lost_probe_of_a_set_length_is_waited_for() {
        const MTU: u32 = 1500;
        let options = Options {
            rate: None,
            mtu: Some(MTU),
            order: Order::BlastFirst,
            monitor: None,
            receive_buffer: None,
        };
        let protection = || Protection::Plain(Check::None);
        let trailer = trailer_len(&protection());
        let (near, far) = streams();
        let receiver = std::thread::spawn({
            move || {
                let mut frames = Frames::new(far, Guard::for_receiver(&protection())).unwrap();
                let mut opener = Opener::new(&protection(), Direction::TowardReceiver);
                let mut knocker = Sealer::new(&protection(), Direction::TowardSender);
                let met = as_receiver(&mut frames, &mut opener, &mut knocker, trailer, &options);
                met.map(|met| met.datagram)
            }
        });
        let mut frames = Frames::new(near, Guard::for_sender(&protection())).unwrap();
        let mut sealer = Sealer::new(&protection(), Direction::TowardReceiver);
        let until = Instant::now() + PEER_TIMEOUT;
        let socket = open(&frames).unwrap();
        let port = port_of(&socket).unwrap().port();
        frames
            .push(&frame(FrameKind::Hello, 7, port.into()), &[])
            .unwrap();
        let ready = expect_socket(&mut frames, &socket, FrameKind::Ready, until).unwrap();
        let to = connect(&frames, &socket, ready.code).unwrap();
        let lengths = [1280, MTU].map(|mtu| mtu - sys::overhead(&to));
        // The first time the long one does not come.
        let mut times = 0;
        let probes = || {
            times += 1;
            for &length in &lengths[..times.min(2)] {
                socket.send(&probe(7, length, &mut sealer, trailer))?;
            }
            Ok(())
        };
        let probed = expect(&mut frames, &socket, FrameKind::Probed, until, probes);
        assert_eq!(probed.unwrap().unwrap().code, lengths[1]);
        assert_eq!(receiver.join().unwrap().unwrap(), lengths[1]);
    }
}
