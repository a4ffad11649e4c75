impl Service {
    async fn stop(mut self: Box<Self>) {
        let (__lock_entered, __lock_value): (_, ()) = {
            let __lock_client = ::lock_core::private::installed();
            let __lock_key = {
                let mut __lock_key = ::lock_core::private::Template::new("a");
                __lock_key.lit("a");
                __lock_key.done()
            };
            let __lock_options = ::lock_core::private::options().wait_forever();
            let __lock_answer = ::lock_core::private::acquire(
                    __lock_client,
                    __lock_key,
                    __lock_options,
                )
                .await;
            let __lock_attempt = match __lock_answer {
                ::lock_core::private::core::result::Result::Ok(__lock_entered) => {
                    let __lock_out = {
                        let __lock_body = ::lock_core::private::core::pin::pin!(
                            async move { if let
                            ::lock_core::private::core::option::Option::Some(__lock_return)
                            = ::lock_core::private::core::option::Option::None:: < () > {
                            return __lock_return; } let _ = & self; }
                        );
                        let __lock_out = __lock_entered.bound(__lock_body).await;
                        __lock_out
                    };
                    match __lock_out {
                        ::lock_core::private::core::result::Result::Ok(__lock_value) => {
                            ::lock_core::private::core::result::Result::Ok((
                                __lock_entered,
                                __lock_value,
                            ))
                        }
                        ::lock_core::private::core::result::Result::Err(
                            __lock_error,
                        ) => {
                            ::lock_core::private::core::mem::drop(__lock_entered);
                            ::lock_core::private::core::result::Result::Err(__lock_error)
                        }
                    }
                }
                ::lock_core::private::core::result::Result::Err(__lock_error) => {
                    ::lock_core::private::core::result::Result::Err(__lock_error)
                }
            };
            match __lock_attempt {
                ::lock_core::private::core::result::Result::Ok(__lock_held) => {
                    __lock_held
                }
                ::lock_core::private::core::result::Result::Err(__lock_error) => {
                    return ::lock_core::private::pass_error::<(), _>(drop, __lock_error);
                }
            }
        };
        __lock_entered.release().await;
        __lock_value
    }
}
