//! What a server says of itself, and what of that puts locks at risk.

use redis::Value;

/// The reply to `INFO`.
pub(crate) struct Info(String);

/// A kind of server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ServerKind {
    Single,
    /// A node of a cluster.
    Node,
    Sentinel,
}

/// Above this share of its memory a server soon refuses claims, in percent.
const NEARLY_FULL: u64 = 90;

impl Info {
    /// Reads the reply. One that is no text tells nothing.
    pub(crate) fn read(reply: Value) -> Self {
        Self(redis::from_redis_value(reply).unwrap_or_default())
    }

    /// A server that may not be asked.
    pub(crate) fn unknown() -> Self {
        Self(String::new())
    }

    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// The server and its version.
    pub(crate) fn server(&self) -> String {
        // Valkey also tells the version of Redis that it is compatible with.
        match (self.field("valkey_version"), self.field("redis_version")) {
            (Some(version), _) => format!("valkey {version}"),
            (None, Some(version)) => format!("redis {version}"),
            (None, None) => "redis".to_owned(),
        }
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.field("role").is_some_and(|role| role != "master")
    }

    pub(crate) fn is_loading(&self) -> bool {
        self.field("loading").is_some_and(|loading| loading == "1")
    }

    /// What kind of server it is, if it tells.
    pub(crate) fn kind(&self) -> Option<ServerKind> {
        // Valkey calls the field otherwise.
        let mode = self.field("redis_mode").or_else(|| self.field("server_mode"));
        match (mode, self.field("cluster_enabled")) {
            (Some("sentinel"), _) => Some(ServerKind::Sentinel),
            (Some("cluster"), _) | (_, Some("1")) => Some(ServerKind::Node),
            (Some("standalone"), _) | (_, Some("0")) => Some(ServerKind::Single),
            _ => None,
        }
    }

    /// Whether it is too old to publish on sharded channels.
    pub(crate) fn is_before_sharded_channels(&self) -> bool {
        let major = self.field("redis_version").and_then(|version| version.split('.').next());
        major.and_then(|major| major.parse().ok()).is_some_and(|major: u32| major < 7)
    }

    /// The policy by which the server removes keys when its memory is full, if it may remove locks.
    pub(crate) fn evicts_by(&self) -> Option<&str> {
        let policy = self.field("maxmemory_policy").filter(|policy| *policy != "noeviction")?;
        self.field("maxmemory").is_some_and(|most| most != "0").then_some(policy)
    }

    /// What puts locks at risk, each with what to do about it.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.is_replica() {
            problems.push("is a replica: connect to the primary".to_owned());
        }
        if self.is_loading() {
            problems.push("is loading its data: wait until it has".to_owned());
        }
        if let Some(policy) = self.evicts_by() {
            problems.push(format!(
                "may evict locks when its memory is full (`{policy}`): set `maxmemory-policy` to \
                 `noeviction`"
            ));
        }
        let number = |name| self.field(name).and_then(|text| text.parse::<u64>().ok());
        if let (Some(used), Some(most @ 1..)) = (number("used_memory"), number("maxmemory"))
            && used / NEARLY_FULL >= most / 100
        {
            problems.push(format!(
                "uses {used} of {most} bytes: raise `maxmemory`, or it will refuse locks"
            ));
        }
        for (field, what) in [
            ("rdb_last_bgsave_status", "its last snapshot"),
            ("aof_last_write_status", "the last write to its append-only file"),
        ] {
            if self.field(field) == Some("err") {
                problems.push(format!(
                    "could not finish {what}, and may refuse all writes (MISCONF): see its log and \
                     its disk"
                ));
            }
        }
        problems
    }

    /// What is good to know.
    pub(crate) fn notes(&self) -> Vec<String> {
        let persistence = match self.field("aof_enabled") {
            Some("1") => {
                "it has an append-only file: a crash forgets the locks of the last second or so, \
                 as `appendfsync` says"
            }
            Some(_) => {
                "it has no append-only file: a crash forgets the locks that were taken since its \
                 last snapshot, and every restart forgets all if it makes none"
            }
            None => return Vec::new(),
        };
        vec![persistence.to_owned()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn healthy_server_has_no_problem_and_each_risk_is_named() {
        let healthy = "redis_version:7.0.15\r\nrole:master\r\nloading:0\r\nused_memory:1000\r\n\
                       maxmemory:0\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";
        let info = |from, to| Info(healthy.replace(from, to));
        assert_eq!(info("", "").problems(), Vec::<String>::new());
        assert_eq!(info("", "").server(), "redis 7.0.15");
        for (from, to, problem) in [
            ("role:master", "role:slave", "is a replica"),
            ("loading:0", "loading:1", "is loading"),
            ("role:master", "role:master\r\nrdb_last_bgsave_status:err", "its last snapshot"),
            ("role:master", "role:master\r\naof_last_write_status:err", "append-only file"),
            ("maxmemory:0", "maxmemory:1100", "uses 1000 of 1100 bytes"),
            (
                "maxmemory:0\r\nmaxmemory_policy:noeviction",
                "maxmemory:9999\r\nmaxmemory_policy:allkeys-lru",
                "may evict",
            ),
        ] {
            let problems = info(from, to).problems();
            assert!(matches!(problems.as_slice(), [one] if one.contains(problem)), "{problems:?}");
        }
        assert_eq!(info("maxmemory:0", "maxmemory:9999").problems(), Vec::<String>::new());
        assert!(Info::unknown().problems().is_empty() && Info::unknown().notes().is_empty());
        for (enabled, part) in [("1", "crash forgets"), ("0", "no append-only file")] {
            let info = Info(format!("role:master\r\naof_enabled:{enabled}\r\n"));
            assert!(info.notes()[0].contains(part) && info.problems().is_empty());
        }
        for (from, to, kind) in [
            ("", "", ServerKind::Single),
            ("cluster_enabled:0", "cluster_enabled:1", ServerKind::Node),
            ("role:master", "redis_mode:cluster", ServerKind::Node),
            ("role:master", "redis_mode:sentinel", ServerKind::Sentinel),
            ("role:master", "server_mode:sentinel", ServerKind::Sentinel),
        ] {
            assert_eq!(info(from, to).kind(), Some(kind));
        }
        assert_eq!(Info::unknown().kind(), None);
        assert!(info("7.0.15", "6.2.7").is_before_sharded_channels());
        assert!(!info("", "").is_before_sharded_channels());
        let valkey = info("redis_version", "valkey_version:9.1.2\r\nredis_version");
        assert_eq!(valkey.server(), "valkey 9.1.2");
    }
}
