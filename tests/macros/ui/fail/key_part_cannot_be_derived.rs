use lock_core::KeyPart;

#[derive(KeyPart)]
enum Kind {
    Book,
}

#[derive(KeyPart)]
struct Pair(u64, u64);

#[derive(KeyPart)]
struct Nothing;

#[derive(KeyPart)]
struct At(std::time::SystemTime);

#[derive(KeyPart)]
#[key_part(rename = "x")]
struct Renamed(u64);

fn main() {}
