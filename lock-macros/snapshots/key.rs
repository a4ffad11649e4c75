const KEY: Key = {
    let mut __lock_key = ::lock_core::private::Template::new("order:<<{user.id()}>>");
    __lock_key.lit("order:<");
    __lock_key.hole(&user.id());
    __lock_key.lit(">");
    __lock_key.done()
};
