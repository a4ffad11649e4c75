//! URLs that name sentinels, or nodes of a cluster.
//!
//! A list of hosts with IPv6 addresses in it is no URL to most parsers, so the hosts are taken out
//! by hand. What is left is the URL of a server, which redis-rs reads.

use std::collections::HashSet;

use crate::error::ConfigError;

/// What a URL with sentinels says.
#[derive(Debug)]
pub(super) struct SentinelUrl {
    /// The URL of a server: user, password, database and protocol, and whether by TLS. Its host is
    /// that of a sentinel.
    pub(super) server: String,
    pub(super) sentinels: Vec<(String, u16)>,
    /// The master's name.
    pub(super) name: String,
    /// For the sentinels.
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// The URL without secrets.
    pub(super) label: String,
}

/// What a URL with nodes of a cluster says.
#[derive(Debug)]
// Without the feature only whether there is one counts.
#[cfg_attr(not(feature = "redis-cluster"), allow(dead_code))]
pub(super) struct ClusterUrl {
    /// The URL of a server: user, password and protocol, and whether by TLS. Its host is the first
    /// node.
    pub(super) server: String,
    pub(super) seeds: Vec<(String, u16)>,
    /// The URL without secrets.
    pub(super) label: String,
}

/// What the hosts of a URL are.
#[derive(Clone, Copy, Debug)]
enum Hosts {
    Sentinels,
    Nodes,
}

impl Hosts {
    /// The port of a host without one.
    fn port(self) -> u16 {
        match self {
            Self::Sentinels => 26379,
            Self::Nodes => 6379,
        }
    }

    fn wrong(self, what: &str) -> ConfigError {
        match self {
            Self::Sentinels => wrong(what),
            Self::Nodes => {
                ConfigError::new("url", format!("{what}; for a cluster write {CLUSTER_FORM}"))
            }
        }
    }
}

const FORM: &str = "`redis+sentinel://[user:password@]host[:port][,host[:port]…]/master-name[/db]`";
const CLUSTER_FORM: &str = "`redis+cluster://[user:password@]host[:port][,host[:port]…]`";

impl SentinelUrl {
    /// Reads `url`; `None` if it names no sentinels.
    ///
    /// No error repeats a part of the URL, which may be a part of a password.
    pub(super) fn read(url: &str) -> Result<Option<Self>, ConfigError> {
        let Some((scheme, rest)) = url.split_once("://") else { return Ok(None) };
        let (server_scheme, name_is_a_parameter) = match scheme.to_ascii_lowercase().as_str() {
            "redis+sentinel" => ("redis", false),
            "rediss+sentinel" => ("rediss", false),
            // As lettuce, a client for Java, writes it.
            "redis-sentinel" => ("redis", true),
            "rediss-sentinel" => ("rediss", true),
            "sentinel" | "sentinels" => return Err(wrong("names no scheme of this store")),
            _ if names_a_master(rest) => {
                return Err(wrong("names a master, which only sentinels know"));
            }
            _ => return Ok(None),
        };
        if rest.contains('#') {
            return Err(wrong("holds a `#`, which has to be written `%23`"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let parameters = Parameters::read(query, name_is_a_parameter)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let sentinels = read_hosts(hosts, Hosts::Sentinels)?;
        let mut path = path.trim_end_matches('/').split('/').filter(|part| !part.is_empty());
        let name = if name_is_a_parameter { parameters.name } else { path.next().map(decoded) };
        let name = name.flatten().ok_or_else(|| wrong("names no master"))?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
            return Err(wrong("names a master with characters that no master's name has"));
        }
        let database = path.next().unwrap_or("0");
        if database.parse::<u32>().is_err() || path.next().is_some() {
            return Err(wrong("has something else than a database's number behind the master"));
        }
        let shown: Vec<_> = sentinels.iter().map(|(host, port)| shown(host, *port)).collect();
        let protocol = parameters.protocol.map(|value| format!("?protocol={value}"));
        let protocol = protocol.unwrap_or_default();
        Ok(Some(Self {
            server: format!("{server_scheme}://{login}{}/{database}{protocol}", shown[0]),
            label: format!("{server_scheme}+sentinel://{}/{name}", shown.join(",")),
            sentinels,
            name,
            user: parameters.user,
            password: parameters.password,
        }))
    }
}

impl ClusterUrl {
    /// Reads `url`; `None` if it names no cluster.
    ///
    /// No error repeats a part of the URL, which may be a part of a password.
    pub(super) fn read(url: &str) -> Result<Option<Self>, ConfigError> {
        let Some((scheme, rest)) = url.split_once("://") else { return Ok(None) };
        let server_scheme = match scheme.to_ascii_lowercase().as_str() {
            "redis+cluster" => "redis",
            "rediss+cluster" => "rediss",
            "redis-cluster" | "rediss-cluster" => {
                return Err(Hosts::Nodes.wrong("names no scheme of this store"));
            }
            _ => return Ok(None),
        };
        if rest.contains('#') {
            return Err(Hosts::Nodes.wrong("holds a `#`, which has to be written `%23`"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !matches!(query, "" | "protocol=2" | "protocol=3" | "protocol=resp2" | "protocol=resp3")
        {
            return Err(Hosts::Nodes.wrong(
                "has an unknown parameter: there is `protocol`, which is `resp2` or `resp3`",
            ));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path, "" | "0" | "0/") {
            return Err(Hosts::Nodes.wrong("names a database, and a cluster has none but 0"));
        }
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let seeds = read_hosts(hosts, Hosts::Nodes)?;
        let shown: Vec<_> = seeds.iter().map(|(host, port)| shown(host, *port)).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        Ok(Some(Self {
            server: format!("{server_scheme}://{login}{}/{query}", shown[0]),
            label: format!("{server_scheme}+cluster://{}", shown.join(",")),
            seeds,
        }))
    }
}

#[derive(Default)]
struct Parameters {
    user: Option<String>,
    password: Option<String>,
    protocol: Option<String>,
    /// `None` in it: it is not encoded as it should be.
    name: Option<Option<String>>,
}

impl Parameters {
    fn read(query: &str, with_name: bool) -> Result<Self, ConfigError> {
        let mut read = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value);
            match name {
                "sentinelMasterId" if with_name => read.name = Some(value),
                "sentinel_username" => read.user = Some(value.ok_or_else(not_encoded)?),
                "sentinel_password" => read.password = Some(value.ok_or_else(not_encoded)?),
                "protocol" => {
                    let known =
                        |value: &String| ["2", "3", "resp2", "resp3"].contains(&value.as_str());
                    let value = value.filter(known);
                    let unknown = || wrong("names an unknown `protocol`: write `resp2` or `resp3`");
                    read.protocol = Some(value.ok_or_else(unknown)?);
                }
                _ => {
                    return Err(wrong(
                        "has an unknown parameter: there are `sentinel_username`, \
                         `sentinel_password` and `protocol`",
                    ));
                }
            }
        }
        if read.user.is_some() && read.password.is_none() {
            return Err(wrong("has a `sentinel_username` without a `sentinel_password`"));
        }
        Ok(read)
    }
}

/// Whether the parameters name a master, as other clients write it.
fn names_a_master(rest: &str) -> bool {
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    let mut names = query.split('&').filter_map(|pair| pair.split('=').next());
    names.any(|name| matches!(name, "master_name" | "sentinelMasterId" | "service_name"))
}

fn read_hosts(hosts: &str, kind: Hosts) -> Result<Vec<(String, u16)>, ConfigError> {
    let read: Vec<_> =
        hosts.split(',').map(|host| read_host(host, kind)).collect::<Result<_, _>>()?;
    let different: HashSet<_> = read.iter().collect();
    if different.len() < read.len() {
        return Err(kind.wrong(match kind {
            Hosts::Sentinels => "names a sentinel twice",
            Hosts::Nodes => "names a node twice",
        }));
    }
    Ok(read)
}

fn read_host(text: &str, kind: Hosts) -> Result<(String, u16), ConfigError> {
    let wrong = |what| kind.wrong(what);
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(|| wrong("misses a `]`"))?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(wrong("has something else than an IPv6 address in brackets"));
            }
            (host, port)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let port = match port.strip_prefix(':') {
        Some(number) => number.parse().ok().filter(|number| *number != 0),
        None => port.is_empty().then_some(kind.port()),
    };
    let what = "has something else than a number as a port (an IPv6 address needs brackets)";
    let port = port.ok_or_else(|| wrong(what))?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_name) {
        return Err(wrong("names no host where one should be"));
    }
    Ok((host.to_owned(), port))
}

fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `text` with its `%xx` decoded; `None` if they are not well-formed.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

fn not_encoded() -> ConfigError {
    wrong("has a `%` that is not followed by two hexadecimal digits: write `%25` for it")
}

fn wrong(what: &str) -> ConfigError {
    ConfigError::new("url", format!("{what}; for sentinels write {FORM}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> SentinelUrl {
        SentinelUrl::read(url).unwrap().unwrap()
    }

    #[test]
    fn hosts_name_and_credentials_are_read() {
        let url = read("redis+sentinel://a,b:1,[::1],[fe80::2]:7/shop");
        let named = [("a", 26379), ("b", 1), ("::1", 26379), ("fe80::2", 7)];
        assert_eq!(url.sentinels, named.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!((url.name.as_str(), url.server.as_str()), ("shop", "redis://a:26379/0"));
        assert_eq!(url.label, "redis+sentinel://a:26379,b:1,[::1]:26379,[fe80::2]:7/shop");
        assert_eq!((url.user, url.password), (None, None));

        let url = read(
            "rediss+sentinel://user:p%40ss@[::1]/my.shop-1/3\
             ?sentinel_username=watch&sentinel_password=s%26%2f&protocol=resp2",
        );
        assert_eq!(url.server, "rediss://user:p%40ss@[::1]:26379/3?protocol=resp2");
        assert_eq!(url.name, "my.shop-1");
        assert_eq!(url.user.as_deref(), Some("watch"));
        assert_eq!(url.password.as_deref(), Some("s&/"));
        assert!(!url.label.contains("p%40ss") && !url.label.contains("user"), "{}", url.label);

        let url = read("redis-sentinel://:secret@a:1,b:2/4?sentinelMasterId=shop");
        assert_eq!(url.server, "redis://:secret@a:1/4");
        assert_eq!((url.name.as_str(), url.sentinels.len()), ("shop", 2));
        assert_eq!(url.label, "redis+sentinel://a:1,b:2/shop");
    }

    #[test]
    fn url_of_a_single_server_is_left_alone() {
        for url in ["redis://a/1", "rediss://u:p@a/", "redis:", "unix:///x", "redis://a?protocol=2"]
        {
            assert!(SentinelUrl::read(url).unwrap().is_none(), "{url}");
        }
    }

    #[test]
    fn mistake_is_named_without_a_part_of_the_url() {
        for (url, part) in [
            ("redis+sentinel://hunter2", "names no master"),
            ("redis+sentinel://hunter2/", "names no master"),
            ("redis+sentinel:///shop", "no host"),
            ("redis+sentinel://u:hunter2@/shop", "no host"),
            ("redis+sentinel://a,,b/shop", "no host"),
            ("redis+sentinel://a,b,a:26379/shop", "twice"),
            ("redis+sentinel://a:hunter2/shop", "as a port"),
            ("redis+sentinel://a:0/shop", "as a port"),
            ("redis+sentinel://::1/shop", "needs brackets"),
            ("redis+sentinel://[::1/shop", "misses a `]`"),
            ("redis+sentinel://[hunter2]/shop", "IPv6"),
            ("redis+sentinel://[::1]hunter2/shop", "as a port"),
            ("redis+sentinel://u:hunter/2@a/shop", "as a port"),
            ("redis+sentinel://hunter/2@a", "no master's name has"),
            ("redis+sentinel://a/shop/hunter2", "behind the master"),
            ("redis+sentinel://a/shop/1/hunter2", "behind the master"),
            ("redis+sentinel://a/shop?hunter2=1", "unknown parameter"),
            ("redis+sentinel://a/shop?sentinel_password=hunter2%", "%25"),
            ("redis+sentinel://a/shop?sentinel_username=hunter2", "without"),
            ("redis+sentinel://a/shop?protocol=hunter2", "`resp2` or `resp3`"),
            ("redis+sentinel://a/shop#hunter2", "%23"),
            ("redis-sentinel://a/0", "names no master"),
            ("redis://u:hunter2@a?master_name=shop&addr=b", "names a master"),
            ("redis://u:hunter2@a?sentinelMasterId=shop", "names a master"),
            ("sentinel://u:hunter2@a", "no scheme"),
        ] {
            let error = SentinelUrl::read(url).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(part) && text.contains("redis+sentinel://"), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{text}");
            assert!(text.starts_with("`url` "), "{text}");
        }
    }

    #[test]
    fn nodes_of_a_cluster_are_read() {
        let read = |url| ClusterUrl::read(url).unwrap().unwrap();
        let url = read("redis+cluster://a,b:1,[::1]");
        let named = [("a", 6379), ("b", 1), ("::1", 6379)];
        assert_eq!(url.seeds, named.map(|(host, port)| (host.to_owned(), port)));
        assert_eq!(url.server, "redis://a:6379/");
        assert_eq!(url.label, "redis+cluster://a:6379,b:1,[::1]:6379");
        let url = read("rediss+cluster://user:p%40ss@a:7/0?protocol=resp2");
        assert_eq!(url.server, "rediss://user:p%40ss@a:7/?protocol=resp2");
        assert_eq!(url.label, "rediss+cluster://a:7");
        for other in ["redis://a", "redis+sentinel://a/b", "a"] {
            assert!(ClusterUrl::read(other).unwrap().is_none());
        }
    }

    #[test]
    fn mistake_in_a_url_of_a_cluster_is_named_without_its_secrets() {
        for (url, part) in [
            ("redis+cluster://", "no host"),
            ("redis+cluster://u:hunter2@", "no host"),
            ("redis+cluster://a,,b", "no host"),
            ("redis+cluster://a,b,a:6379", "twice"),
            ("redis+cluster://a:hunter2", "as a port"),
            ("redis+cluster://::1", "needs brackets"),
            ("redis+cluster://u:hunter2@a/1", "none but 0"),
            ("redis+cluster://u:hunter/2@a", "none but 0"),
            ("redis+cluster://a/?hunter2=1", "unknown parameter"),
            ("redis+cluster://a#hunter2", "%23"),
            ("redis-cluster://u:hunter2@a", "no scheme"),
        ] {
            let text = ClusterUrl::read(url).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("redis+cluster://"), "{url}: {text}");
            assert!(!text.contains("hunter"), "{text}");
        }
    }
}
