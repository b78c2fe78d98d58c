/** NUL-terminated strings in attributes. */

/** The bytes of a string with a terminating NUL. */
export function nulTerminated(text: string): Buffer {
  return Buffer.from(`${text}\0`);
}

/**
 * Encodes a name with a terminating NUL. Rejects the empty name: for some requests a missing name
 * means all objects.
 * @param limit Maximum length in bytes, including the NUL.
 * @throws RangeError for an empty name, and for a name that the kernel would truncate or refuse.
 */
export function boundedName(what: string, name: string, limit: number): Buffer {
  const bytes = nulTerminated(name);
  if (bytes.length < 2 || bytes.length > limit || name.includes('\0')) {
    throw new RangeError(
      `invalid ${what} ${JSON.stringify(name)}: must have 1 to ${limit - 1} bytes without NUL`,
    );
  }
  return bytes;
}

/** Reads a string up to the first NUL or the end. */
export function readText(bytes: Buffer, start = 0, end = bytes.length): string {
  const nul = bytes.indexOf(0, start);
  return bytes.toString('utf8', start, nul < 0 || nul > end ? end : nul);
}
