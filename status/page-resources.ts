/** Serves the status page: `/` and the files that it loads. */
import { getOrCreate } from '../api/collections.ts';
import { File } from './http/file.ts';
import { NotFound, type Resources, resource } from './http/handler.ts';
import { contentType, PAGE_SCRIPT, pageFileNames, readPageFile } from './page-files.ts';
import { joinModules } from './page-script.ts';

/** A file is read at its first request, and kept: about 200 KiB in all. */
export function pageResources(): Resources {
  let names: Promise<readonly string[]> | undefined;
  const files = new Map<string, Promise<File>>();
  const fileOf = async (name: string): Promise<File> => {
    names ??= keep(pageFileNames(), () => {
      names = undefined;
    });
    if (name !== PAGE_SCRIPT.name && !(await names).includes(name))
      throw new NotFound('the page has no such file');
    return await getOrCreate(files, name, () => keep(loadFile(name), () => files.delete(name)));
  };
  return {
    '/': resource({
      summary: 'The status page',
      response: undefined,
      parameters: {},
      handle: () => fileOf('index.html'),
    }),
    '/page/{file}': resource({
      summary: 'A file of the status page',
      response: undefined,
      parameters: {},
      handle: (_, { path: [name = ''] }) => fileOf(name),
    }),
  };
}

/** The next request tries again after a failure. */
function keep<T>(read: Promise<T>, forget: () => void): Promise<T> {
  read.catch(forget);
  return read;
}

async function loadFile(name: string): Promise<File> {
  const type = contentType(name) ?? 'application/octet-stream';
  if (name !== PAGE_SCRIPT.name) return new File({ type, content: await readPageFile(name) });
  const read = async (module: string) => String(await readPageFile(module));
  return new File({ type, content: Buffer.from(await joinModules(PAGE_SCRIPT.entry, read)) });
}
