/** Serves the status page: `/` and the files that it loads. */
import { getOrCreate } from '../api/collections.ts';
import { File } from './http/file.ts';
import { NotFound, type Resources, resource } from './http/handler.ts';
import { contentType, pageFileNames, readPageFile } from './page-files.ts';

/** A file is read at its first request, and kept: about 250 KiB in all. */
export function pageResources(): Resources {
  let names: Promise<readonly string[]> | undefined;
  const files = new Map<string, Promise<File>>();
  const fileOf = async (name: string): Promise<File> => {
    names ??= pageFileNames();
    if (!(await names).includes(name)) throw new NotFound('the page has no such file');
    return await getOrCreate(files, name, () => loadFile(name));
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

async function loadFile(name: string): Promise<File> {
  const type = contentType(name) ?? 'application/octet-stream';
  return new File({ type, content: await readPageFile(name) });
}
