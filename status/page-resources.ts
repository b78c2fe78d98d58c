/** Serves the status page: `/` and the files that it loads. */
import { File } from './http/file.ts';
import { NotFound, type Resources, resource } from './http/handler.ts';
import { contentType, pageFileNames, readPageFile } from './page-files.ts';

/** Files are read at the first request, and kept: about 250 KiB. */
export function pageResources(): Resources {
  let loading: Promise<ReadonlyMap<string, File>> | undefined;
  const fileOf = async (name: string): Promise<File> => {
    loading ??= loadFiles();
    const file = (await loading).get(name);
    if (file === undefined) throw new NotFound('the page has no such file');
    return file;
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

async function loadFiles(): Promise<ReadonlyMap<string, File>> {
  const names = await pageFileNames();
  const files = names.map(async (name): Promise<[string, File]> => {
    const type = contentType(name) ?? 'application/octet-stream';
    return [name, new File({ type, content: await readPageFile(name) })];
  });
  return new Map(await Promise.all(files));
}
