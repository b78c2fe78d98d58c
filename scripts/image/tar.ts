/** Tar archives in memory. The reader takes archives of Debian and npm; the writer is deterministic. */

/** A file, directory or symbolic link. */
export interface Entry {
  /** Without a leading or trailing slash. */
  readonly path: string;
  readonly mode: number;
  /** Unix time in seconds. */
  readonly mtime: number;
  /** Content of a file. */
  readonly data?: Buffer;
  /** Target of a symbolic link. An entry without data and target is a directory. */
  readonly target?: string;
}

const BLOCK = 512;
const NUL = '\0';

/**
 * The files, directories and links of an archive in ustar, GNU or pax format. A hard link becomes a
 * second file.
 *
 * @throws Error if an entry has another type, such as a device
 */
export function readTar(archive: Buffer): Entry[] {
  const entries: Entry[] = [];
  const files = new Map<string, Buffer>();
  let names: { path?: string; linkpath?: string } = {};
  for (let offset = 0; offset + BLOCK <= archive.length; ) {
    const header = archive.subarray(offset, offset + BLOCK);
    if (header[0] === 0) break;
    const size = octal(header, 124, 12);
    const data = archive.subarray(offset + BLOCK, offset + BLOCK + size);
    offset += BLOCK + Math.ceil(size / BLOCK) * BLOCK;
    const type = text(header, 156, 1);
    if (type === 'g') continue;
    if (type === 'x') names = paxNames(data);
    else if (type === 'L') names = { ...names, path: text(data, 0, size) };
    else if (type === 'K') names = { ...names, linkpath: text(data, 0, size) };
    else {
      // GNU's format has times in the place of the prefix.
      const prefix = text(header, 257, 6) === 'ustar' ? text(header, 345, 155) : '';
      const short = text(header, 0, 100);
      const path = normal(names.path ?? (prefix === '' ? short : `${prefix}/${short}`));
      const target = names.linkpath ?? text(header, 157, 100);
      names = {};
      const common = { path, mode: octal(header, 100, 8) & 0o1777, mtime: octal(header, 136, 12) };
      if (type === '' || type === '0') {
        files.set(path, data);
        entries.push({ ...common, data });
      } else if (type === '1') {
        const linked = files.get(normal(target));
        if (linked === undefined) throw new Error(`${path}: hard link to a missing file ${target}`);
        entries.push({ ...common, data: linked });
      } else if (type === '2') entries.push({ ...common, target });
      else if (type === '5') entries.push(common);
      else throw new Error(`${path}: entries of type ${type} are not supported`);
    }
  }
  return entries;
}

/** Writes entries in ustar format, sorted by path and owned by root. */
export function writeTar(entries: readonly Entry[]): Buffer {
  // By bytes: the order must not depend on the locale.
  const sorted = [...entries].sort((one, other) => (one.path < other.path ? -1 : 1));
  const blocks = sorted.flatMap((entry) => {
    const { data = Buffer.alloc(0) } = entry;
    return [header(entry), data, Buffer.alloc(-data.length & (BLOCK - 1))];
  });
  return Buffer.concat([...blocks, Buffer.alloc(2 * BLOCK)]);
}

function header({ path, mode, mtime, data, target }: Entry): Buffer {
  const isDirectory = data === undefined && target === undefined;
  const block = Buffer.alloc(BLOCK);
  const [prefix, name] = split(isDirectory ? `${path}/` : path);
  block.write(name, 0);
  writeOctal(block, mode, 100, 8);
  writeOctal(block, 0, 108, 8);
  writeOctal(block, 0, 116, 8);
  writeOctal(block, data?.length ?? 0, 124, 12);
  writeOctal(block, mtime, 136, 12);
  block.write(isDirectory ? '5' : target === undefined ? '0' : '2', 156);
  if (Buffer.byteLength(target ?? '') > 100) throw new Error(`${path}: link target is too long`);
  block.write(target ?? '', 157);
  block.write('ustar\x0000', 257);
  block.write(prefix, 345);
  block.fill(' ', 148, 156);
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
  return block;
}

/**
 * The path as prefix and name, as ustar has them.
 *
 * @throws Error if it fits in no two fields
 */
function split(path: string): [prefix: string, name: string] {
  if (Buffer.byteLength(path) <= 100) return ['', path];
  for (let at = path.indexOf('/'); at > 0; at = path.indexOf('/', at + 1)) {
    const [prefix, name] = [path.slice(0, at), path.slice(at + 1)];
    if (Buffer.byteLength(prefix) > 155) break;
    if (name !== '' && Buffer.byteLength(name) <= 100) return [prefix, name];
  }
  throw new Error(`${path}: the path is too long for ustar`);
}

function paxNames(data: Buffer): { path?: string; linkpath?: string } {
  const records = data.toString().matchAll(/^\d+ (path|linkpath)=(.*)$/gm);
  return Object.fromEntries([...records].map(([, key, value]) => [key, value]));
}

function normal(path: string): string {
  return path.replace(/^(\.?\/)+|\/+$/g, '').replace(/^\.$/, '');
}

function text(block: Buffer, start: number, length: number): string {
  const [value = ''] = block.toString('utf8', start, start + length).split(NUL);
  return value;
}

function octal(block: Buffer, start: number, length: number): number {
  return Number.parseInt(text(block, start, length).trim() || '0', 8);
}

function writeOctal(block: Buffer, value: number, start: number, length: number): void {
  block.write(value.toString(8).padStart(length - 1, '0'), start);
}
