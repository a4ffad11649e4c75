//! The two ends of a stream.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::link::{Packet, State, Way, What};

/// What the server reads.
pub(crate) enum Arrived {
    /// And when they were sent.
    Bytes(Vec<u8>, Instant),
    End,
}

/// The server's end of a stream. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Conn {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) id: u64,
}

/// The client's end.
pub(super) struct ClientEnd {
    pub(super) state: Arc<Mutex<State>>,
    pub(super) id: u64,
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

impl Conn {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The next bytes from the client.
    pub(crate) async fn next_request(&self) -> Arrived {
        loop {
            let next = poll_fn(|cx| {
                let arrived = self.state.lock().unwrap().arrived(self.id, Way::Up, cx);
                match arrived {
                    Err(None) => Poll::Pending,
                    ready => Poll::Ready(ready),
                }
            });
            match next.await {
                Ok((What::Bytes(bytes), sent)) => {
                    return Arrived::Bytes(bytes, sent.unwrap_or_else(Instant::now));
                }
                Ok((What::End | What::Reset, _)) => return Arrived::End,
                Err(due) => {
                    if let Some(due) = due {
                        sleep_until(due).await;
                    }
                }
            }
        }
    }

    /// Sends bytes to the client. `asked`: they say what became of a command that was sent then.
    pub(crate) fn answer(&self, bytes: Vec<u8>, asked: Option<Instant>) {
        self.state.lock().unwrap().send(self.id, Way::Down, asked, What::Bytes(bytes));
    }

    /// Whether the server itself has ended it.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock().unwrap();
        state.conns.get(&self.id).is_none_or(|link| !state.up[link.server])
    }

    pub(crate) fn close(&self) {
        self.state.lock().unwrap().close(self.id, Way::Up);
    }
}

impl AsyncRead for ClientEnd {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let end = self.get_mut();
        loop {
            let arrived = end.state.lock().unwrap().arrived(end.id, Way::Down, cx);
            match arrived {
                Ok((What::Bytes(bytes), _)) => {
                    let room = buffer.remaining().min(bytes.len());
                    buffer.put_slice(&bytes[..room]);
                    if room < bytes.len() {
                        let mut state = end.state.lock().unwrap();
                        if let Some(link) = state.conns.get_mut(&end.id) {
                            let rest = What::Bytes(bytes[room..].to_vec());
                            let packet = Packet::of(Instant::now(), rest);
                            link.pipes[Way::Down as usize].packets.push_front(packet);
                        }
                    }
                    return Poll::Ready(Ok(()));
                }
                Ok((What::End, _)) => return Poll::Ready(Ok(())),
                Ok((What::Reset, _)) => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Err(None) => return Poll::Pending,
                Err(Some(due)) => {
                    let timer = end.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
                    if timer.deadline() != due {
                        timer.as_mut().reset(due);
                    }
                    ready!(timer.as_mut().poll(cx));
                    end.timer = None;
                }
            }
        }
    }
}

impl AsyncWrite for ClientEnd {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock().unwrap();
        if state.is_reset(self.id) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        state.send(self.id, Way::Up, Some(Instant::now()), What::Bytes(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientEnd {
    fn drop(&mut self) {
        self.state.lock().unwrap().close(self.id, Way::Down);
    }
}
