//! UDP sockets of services and clients.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use crate::limits::SOCKET_BYTES;

/// Binds a socket with large buffers. Sockets that are `shared` may have the same address, and the kernel divides the
/// connections among them.
///
/// The system may give smaller buffers ([`receive_bytes`]). That is no error.
///
/// # Errors
/// When the address is in use or cannot be used.
pub fn bind(address: SocketAddr, shared: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if shared {
        socket.set_reuse_port(true)?;
    }
    // Packets of a burst over many connections wait here. What has no room is lost, and is sent again only after a
    // timeout of QUIC.
    let _ = socket.set_recv_buffer_size(SOCKET_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BYTES);
    if address.is_ipv6() && address.ip().is_unspecified() {
        // A client reaches servers of both families. Where the system forbids it, it reaches those of IPv6.
        let _ = socket.set_only_v6(false);
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Returns the size of the buffer for received packets that the system gave to a socket. Linux counts its own overhead
/// in, and reports twice of what was asked for.
///
/// # Errors
/// When the system does not tell.
pub fn receive_bytes(socket: &UdpSocket) -> io::Result<usize> {
    socket2::SockRef::from(socket).recv_buffer_size()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_socket_gets_more_than_the_system_gives_by_default_if_it_may() {
        let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let plain = UdpSocket::bind(any).expect("loopback has free ports");
        let bound = bind(any, false).expect("loopback has free ports");
        let [before, after] = [&plain, &bound].map(|socket| receive_bytes(socket).expect("Linux tells"));
        let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").ok();
        let most = most.and_then(|most| most.trim().parse().ok()).unwrap_or(0);
        assert!(after >= before.min(2 * most), "{before} before, {after} now, {most} permitted");
        assert!(most <= before || after > before, "{before} before, {after} now, {most} permitted");
    }

    #[test]
    fn only_shared_sockets_share_an_address() {
        let first = bind((Ipv4Addr::LOCALHOST, 0).into(), true).expect("loopback has free ports");
        let address = first.local_addr().expect("it is bound");
        assert!(bind(address, true).is_ok());
        let error = bind(address, false).expect_err("it is in use");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
