// Whether samples are all of a type: every field occurs, exactly the optional ones are absent
// somewhere, every value of an enum is there.

type EveryKey<T> = T extends unknown ? keyof T : never;
type RequiredKey<T> = { [K in keyof T]-?: {} extends Pick<T, K> ? never : K }[keyof T];
type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;
type Both<A, B> = A extends true ? B : false;

export type Exact<T, Samples extends readonly unknown[]> = [T] extends [string]
  ? Same<T, Samples[number]>
  : Both<Same<keyof T, EveryKey<Samples[number]>>, Same<RequiredKey<T>, keyof Samples[number]>>;
