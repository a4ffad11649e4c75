impl Service {
    async fn order<T: Send>(&self, cmd: Cmd, a: T, b: T) -> Result<impl Display, Error>
    where
        T: PartialOrd,
    {
        let (__lock_entered, __lock_value): (_, Result<_, Error>) = {
            let cmd = cmd;
            let a = a;
            let b = b;
            let __lock_client = facade::locks::private::client(&self.locks);
            let __lock_key = {
                let mut __lock_key = facade::locks::private::Template::new(
                    "order:<self.id>:{cmd.sku}:<(a > b)>:fixed",
                );
                __lock_key.lit("order:");
                __lock_key.hole(&self.id);
                __lock_key.lit(":");
                __lock_key.hole(&cmd.sku);
                __lock_key.lit(":");
                __lock_key.hole(&(a > b));
                __lock_key.lit(":fixed");
                __lock_key.done()
            };
            let __lock_options = facade::locks::private::options()
                .with_ttl(
                    facade::locks::private::core::time::Duration::from_millis(90000u64),
                )
                .or(facade::locks::private::wait(patience))
                .with_max_hold(
                    facade::locks::private::core::time::Duration::from_millis(3600000u64),
                )
                .without_min_hold()
                .without_renewal()
                .or(facade::locks::private::fencing(self.fencing))
                .or(self.options);
            let __lock_answer = facade::locks::private::acquire(
                    __lock_client,
                    __lock_key,
                    __lock_options,
                )
                .await;
            let __lock_attempt = match __lock_answer {
                facade::locks::private::core::result::Result::Ok(__lock_entered) => {
                    let __lock_out = {
                        let lease = __lock_entered.lease();
                        let __lock_body = facade::locks::private::core::pin::pin!(
                            async move { if let
                            facade::locks::private::core::option::Option::Some(__lock_return)
                            = facade::locks::private::core::option::Option::None:: <
                            Result < _, Error > > { return __lock_return; } use
                            std::fmt::Write as _; cmd.run(lease). await }
                        );
                        let __lock_out = __lock_entered.scoped(__lock_body).await;
                        __lock_out
                    };
                    match __lock_out {
                        facade::locks::private::core::result::Result::Ok(
                            __lock_value,
                        ) => {
                            facade::locks::private::core::result::Result::Ok((
                                __lock_entered,
                                __lock_value,
                            ))
                        }
                        facade::locks::private::core::result::Result::Err(
                            __lock_error,
                        ) => {
                            facade::locks::private::core::mem::drop(__lock_entered);
                            facade::locks::private::core::result::Result::Err(
                                __lock_error,
                            )
                        }
                    }
                }
                facade::locks::private::core::result::Result::Err(__lock_error) => {
                    facade::locks::private::core::result::Result::Err(__lock_error)
                }
            };
            match __lock_attempt {
                facade::locks::private::core::result::Result::Ok(__lock_held) => {
                    __lock_held
                }
                facade::locks::private::core::result::Result::Err(__lock_error) => {
                    return if __lock_error.is_busy() {
                        facade::locks::private::pass_error::<
                            Result<_, Error>,
                            _,
                        >(Self::busy, __lock_error)
                    } else {
                        facade::locks::private::pass_error::<
                            Result<_, Error>,
                            _,
                        >(|error| Err(error.into()), __lock_error)
                    };
                }
            }
        };
        __lock_entered.release().await;
        __lock_value
    }
}
