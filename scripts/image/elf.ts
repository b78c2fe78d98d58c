/** Shared libraries of ELF files: no program can be started that is built for another architecture. */
import type { Entry } from './tar.ts';

const MAGIC = '7f454c46';
const PT_LOAD = 1;
const PT_DYNAMIC = 2;
const DT_NEEDED = 1;
const DT_STRTAB = 5;

/** Libraries that files of an image need and that are not in the image, as "FILE needs LIBRARY". */
export function missingLibraries(entries: readonly Entry[]): string[] {
  const names = new Set(entries.map(({ path }) => path.slice(path.lastIndexOf('/') + 1)));
  return entries.flatMap(({ path, data }) =>
    neededLibraries(data ?? Buffer.alloc(0))
      .filter((library) => !names.has(library))
      .map((library) => `${path} needs ${library}`),
  );
}

/** Names of the libraries that a 64-bit little-endian ELF file is linked with; none for other files. */
function neededLibraries(file: Buffer): string[] {
  if (file.toString('hex', 0, 4) !== MAGIC) return [];
  const headers = programHeaders(file);
  const dynamic = headers.find(({ type }) => type === PT_DYNAMIC);
  if (dynamic === undefined) return [];
  const tags: [tag: number, value: number][] = [];
  for (let at = dynamic.offset; at < dynamic.offset + dynamic.size; at += 16) {
    tags.push([number(file, at), number(file, at + 8)]);
  }
  const address = tags.find(([tag]) => tag === DT_STRTAB)?.[1] ?? 0;
  const segment = headers.find(
    ({ type, start, size }) => type === PT_LOAD && address >= start && address < start + size,
  );
  if (segment === undefined) return [];
  const strings = segment.offset + address - segment.start;
  return tags
    .filter(([tag]) => tag === DT_NEEDED)
    .map(([, at]) => file.toString('latin1', strings + at, file.indexOf(0, strings + at)));
}

function programHeaders(file: Buffer) {
  const [table, size, count] = [number(file, 32), file.readUInt16LE(54), file.readUInt16LE(56)];
  return Array.from({ length: count }, (_, index) => {
    const at = table + index * size;
    return {
      type: file.readUInt32LE(at),
      offset: number(file, at + 8),
      start: number(file, at + 16),
      size: number(file, at + 32),
    };
  });
}

/** Offsets and small tags; processor-specific tags lose precision and are not read. */
function number(file: Buffer, at: number): number {
  return Number(file.readBigUInt64LE(at));
}
