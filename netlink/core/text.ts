/** Text in attributes, which ends in a NUL. */

/** With its NUL. */
export function nulTerminated(text: string): Buffer {
  return Buffer.from(`${text}\0`);
}

/**
 * A name with its NUL. Never empty: some requests without a name are about all there is.
 * @param limit Bytes that the kernel has for it.
 * @throws RangeError for one that the kernel would cut or refuse.
 */
export function boundedName(what: string, name: string, limit: number): Buffer {
  const bytes = nulTerminated(name);
  if (bytes.length < 2 || bytes.length > limit || name.includes('\0')) {
    throw new RangeError(`${what}: ${JSON.stringify(name)}`);
  }
  return bytes;
}

/** Up to the NUL, if there is one. */
export function readText(bytes: Buffer, start = 0, end = bytes.length): string {
  const nul = bytes.indexOf(0, start);
  return bytes.toString('utf8', start, nul < 0 || nul > end ? end : nul);
}
