// Finds the packages of this install for programs elsewhere: ES modules know no NODE_PATH.
import { registerHooks } from "node:module";

const installed = new URL("./", import.meta.url).href;

registerHooks({
  resolve(specifier, context, next) {
    try {
      return next(specifier, context);
    } catch (error) {
      if (error.code !== "ERR_MODULE_NOT_FOUND" || /^[./]|^file:/.test(specifier)) throw error;
      return next(specifier, { ...context, parentURL: installed });
    }
  },
});
