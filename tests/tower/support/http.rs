//! A server on a free port, and requests written by hand, so that they can be malformed or
//! abandoned.

use std::net::SocketAddr;

use axum::Router;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::soon;

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { addr, task }
    }

    pub(crate) fn of_task(addr: SocketAddr, task: JoinHandle<()>) -> Self {
        Self { addr, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

pub(crate) async fn get(server: &Server, path: &str) -> Reply {
    send(server, &head("GET", path, &[])).await
}

pub(crate) async fn post(server: &Server, path: &str, headers: &[(&str, &str)]) -> Reply {
    send(server, &head("POST", path, headers)).await
}

/// Sends the bytes and reads until the server closes.
pub(crate) async fn send(server: &Server, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    // A refused request may be answered before it is read to its end.
    drop(stream.write_all(request).await);
    let mut reply = Vec::new();
    soon(stream.read_to_end(&mut reply)).await.unwrap();
    let reply = String::from_utf8(reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").expect("a response");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head: head.to_owned(), body: body.to_owned() }
}

/// Sends a request and leaves its connection with the caller, who may hang up.
pub(crate) async fn open(server: &Server, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    stream.write_all(&head("POST", path, &[])).await.unwrap();
    stream
}

fn head(method: &str, path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    use std::fmt::Write as _;

    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n"
    );
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    head.push_str("\r\n");
    head.into_bytes()
}
