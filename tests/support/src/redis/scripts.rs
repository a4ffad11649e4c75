//! The lock scripts: their texts, and what an `EVALSHA` of one does.

use std::sync::LazyLock;

use crate::op::Op;

macro_rules! script {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../../../lock-core/src/store/redis/scripts/", $file))),+)
    };
}

const ACQUIRE: &str = script!("shared.lua", "acquire.lua");
const RENEW: &str = script!("renew.lua");
const VOTE: &str = script!("vote.lua");
const RELEASE: &str = script!("shared.lua", "release.lua");

static DIGESTS: LazyLock<[(Op, String); 4]> = LazyLock::new(|| {
    [(Op::Acquire, ACQUIRE), (Op::Renew, RENEW), (Op::Release, RELEASE), (Op::Vote, VOTE)]
        .map(|(op, text)| (op, redis::Script::new(text).get_hash().to_owned()))
});

/// The texts, for `SCRIPT LOAD`.
pub(crate) const TEXTS: [&str; 4] = [ACQUIRE, RENEW, RELEASE, VOTE];

/// What a command does.
pub fn classify(args: &[Vec<u8>]) -> Op {
    let name = args.first().map_or(&[][..], Vec::as_slice).to_ascii_lowercase();
    let script = args.get(1).map(|script| String::from_utf8_lossy(script));
    match (name.as_slice(), script) {
        (b"evalsha", Some(digest)) => of_digest(&digest),
        (b"eval", Some(text)) => of_digest(redis::Script::new(&text).get_hash()),
        _ => Op::Other,
    }
}

fn of_digest(digest: &str) -> Op {
    let known = DIGESTS.iter().find(|(_, known)| known == digest);
    known.map_or(Op::Other, |(op, _)| *op)
}
